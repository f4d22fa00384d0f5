//! Looking for tasks and letters: all of them, in order, a bounded number of rows at a time.

use std::collections::BTreeSet;

use redrive::store::{ArchiveFilter, DeadFilter, EndedAs, MOST_LOOKED_AT, TaskFilter};
use redrive::{DeadReason, Failure, NewTask, Outcome, Task, TaskId};

use crate::harness::*;

layouts!(
    a_look_is_bounded_and_goes_on,
    few_rows_are_found_at_once_among_many,
    errors_are_searched_as_text,
    tasks_are_found_by_id_and_due_time,
    letters_are_found_by_reason_and_owner,
    history_is_found_by_how_it_ended,
    params_are_left_out_where_nobody_looks_at_them,
);

async fn a_look_is_bounded_and_goes_on(db: Db) {
    let many = u64::from(MOST_LOOKED_AT) * 2 + 500;
    for part in (0..many).collect::<Vec<_>>().chunks(5_000) {
        db.store.insert(part.iter().map(|n| new(*n).no_key()).collect(), NOW).await.unwrap();
    }
    db.sql(
        "UPDATE retry_task SET last_error_msg = 'needle', last_error_kind = 'k', last_error_time = 1 WHERE id % 97 = 0",
    )
    .await;
    let wanted = db.count("retry_task WHERE id % 97 = 0").await;
    let filter = TaskFilter { error_contains: Some("needle".into()), ..TaskFilter::default() };
    let first = db.store.search(&filter, 1_000).await.unwrap();
    assert!(first.continue_after.is_some() && first.items.len() < 1_000, "it has not looked at all");
    let (mut seen, mut looks, mut next) = (Vec::new(), 0, filter.clone());
    loop {
        let found = db.store.search(&next, 1_000).await.unwrap();
        seen.extend(found.items.iter().map(|task| task.id));
        looks += 1;
        next.after = found.continue_after;
        if next.after.is_none() {
            break;
        }
    }
    assert_eq!(seen.len() as i64, wanted, "all of them, once");
    assert!(seen.windows(2).all(|w| w[0] > w[1]), "newest first");
    assert!((2..10).contains(&looks), "{looks}");
    assert_eq!(db.store.list(&filter, 1_000).await.unwrap().len(), seen.len(), "a list goes on by itself");
    // Of a common method as of anything else.
    let of_method = TaskFilter { method: Some("m".into()), ..TaskFilter::default() };
    let found = db.store.search(&of_method, 10).await.unwrap();
    assert_eq!((found.items.len(), found.continue_after), (10, found.items.last().map(|task| task.id)));
}

async fn few_rows_are_found_at_once_among_many(db: Db) {
    let rare = add(&db.store, NewTask::new("rare", &1).unwrap()).await;
    let order = add(&db.store, new(0).business("order", "7")).await;
    for part in 0..5 {
        db.store.insert((0..4_000).map(|n| new(part * 4_000 + n).no_key()).collect(), later(60)).await.unwrap();
    }
    let all = TaskFilter::default;
    for (filter, id) in [
        (TaskFilter { method: Some("rare".into()), ..all() }, rare),
        (TaskFilter { business_id: Some("7".into()), ..all() }, order),
        (TaskFilter { business_id: Some("7".into()), method: Some("m".into()), ..all() }, order),
    ] {
        let found = db.store.search(&filter, 10).await.unwrap();
        assert_eq!((found.items.len(), found.continue_after), (1, None), "by an index, in one look: {filter:?}");
        assert_eq!(found.items[0].id, id);
    }
}

async fn fail_with(db: &Db, n: u64, message: &str) -> TaskId {
    let (task, me) = claimed(&db.store, new(n)).await;
    end(&db.store, &task, Outcome::Failed(Failure::retry("timeout", message)), NOW).await;
    db.store.retire(me).await.unwrap();
    task.id
}

async fn errors_are_searched_as_text(db: Db) {
    let id = fail_with(&db, 1, "Connection refused: 100% of a_b [x] 'q' \\ 漢字").await;
    fail_with(&db, 2, "something else").await;
    let found = async |text: &str| {
        let filter = TaskFilter { error_contains: Some(text.into()), ..TaskFilter::default() };
        db.store.search(&filter, 10).await.unwrap().items.iter().map(|t| t.id).collect::<Vec<_>>()
    };
    for text in ["Connection", "connection REFUSED", "100% of", "a_b", "[x]", "'q'", "\\", "漢字"] {
        assert_eq!(found(text).await, [id], "{text}");
    }
    for text in ["100%of", "a%b", "axb", "' OR '1'='1", "?"] {
        assert!(found(text).await.is_empty(), "{text}");
    }
    assert_eq!(found("").await.len(), 2);
}

async fn tasks_are_found_by_id_and_due_time(db: Db) {
    let mut ids = Vec::new();
    for n in 0..6 {
        ids.push(add(&db.store, new(n).delay(std::time::Duration::from_secs(n * 60))).await);
    }
    let found = async |filter: TaskFilter| {
        let items = db.store.search(&filter, 10).await.unwrap().items;
        items.iter().map(|t| t.due.since(NOW).as_secs() / 60).collect::<BTreeSet<_>>()
    };
    let all = TaskFilter::default;
    let some = TaskFilter { ids: Some(vec![ids[1], ids[4], TaskId::from_i64(5)]), ..all() };
    assert_eq!(found(some).await, [1, 4].into());
    assert_eq!(found(TaskFilter { ids: Some(Vec::new()), ..all() }).await, [].into(), "none of none");
    let due = TaskFilter { due_from: Some(later(60)), due_before: Some(later(180)), ..all() };
    assert_eq!(found(due).await, [1, 2].into());
    let too_many = TaskFilter { ids: Some(vec![ids[0]; 1_001]), ..all() };
    assert!(db.store.search(&too_many, 10).await.unwrap_err().to_string().contains("ids"));
}

async fn letters_are_found_by_reason_and_owner(db: Db) {
    let ids = add_many(&db.store, 4).await;
    let me = node(&db.store).await;
    let tasks = claim_all(&db.store, me, NOW).await.tasks;
    for task in &tasks {
        let by_hand = task.id == ids[0] || task.id == ids[1];
        if by_hand {
            db.store.fail(task.id, NOW).await.unwrap();
            end(&db.store, task, timeout(), NOW).await;
        } else {
            end(&db.store, task, Outcome::Failed(Failure::reject("invalid_data", "no")), NOW).await;
        }
    }
    let ada = db.store.acting("ada").unwrap();
    ada.take_over(ids[0], "eve", later(1)).await.unwrap();
    ada.acknowledge(ids[2], later(1)).await.unwrap();
    let found = async |filter: DeadFilter| {
        let items = db.store.search_dead(&filter, 10).await.unwrap().items;
        items.iter().map(|letter| ids.iter().position(|id| *id == letter.task.id).unwrap()).collect::<BTreeSet<_>>()
    };
    let all = DeadFilter::default;
    assert_eq!(found(DeadFilter { reason: Some(DeadReason::FailedByHand), ..all() }).await, [0, 1].into());
    assert_eq!(found(DeadFilter { reason: Some(DeadReason::Rejected), ..all() }).await, [2, 3].into());
    assert_eq!(found(DeadFilter { owner: Some("eve".into()), ..all() }).await, [0].into());
    assert_eq!(found(DeadFilter { owned: Some(false), ..all() }).await, [1, 2, 3].into());
    assert_eq!(found(DeadFilter { acknowledged: Some(true), ..all() }).await, [0, 2].into());
    assert_eq!(found(DeadFilter { acknowledged: Some(false), ..all() }).await, [1, 3].into());
    let both = TaskFilter { method: Some("m".into()), error_contains: Some("NO".into()), ..TaskFilter::default() };
    assert_eq!(found(DeadFilter { reason: Some(DeadReason::Rejected), ..both.into() }).await, [2, 3].into());
}

async fn history_is_found_by_how_it_ended(db: Db) {
    let ids = add_many(&db.store, 3).await;
    db.store.cancel(ids[0], NOW).await.unwrap();
    db.store.fail(ids[1], NOW).await.unwrap();
    db.store.resolve(&ids[1..2], "ada", None, later(1)).await.unwrap();
    let found = async |filter: ArchiveFilter| {
        db.store.search_archive(&filter, 10).await.unwrap().items.iter().map(|a| a.task.id).collect::<Vec<_>>()
    };
    let all = ArchiveFilter::default;
    assert_eq!(found(ArchiveFilter { ended_as: Some(EndedAs::Cancelled), ..all() }).await, [ids[0]]);
    assert_eq!(found(ArchiveFilter { reason: Some(DeadReason::FailedByHand), ..all() }).await, [ids[1]]);
    assert_eq!(found(all()).await.len(), 2);
}

async fn params_are_left_out_where_nobody_looks_at_them(db: Db) {
    let ids = add_many(&db.store, 3).await;
    db.store.cancel(ids[0], NOW).await.unwrap();
    db.store.fail(ids[1], NOW).await.unwrap();
    let lists = async |without_params: bool| {
        let filter = TaskFilter { without_params, ..TaskFilter::default() };
        let tasks = db.store.search(&filter, 10).await.unwrap().items;
        let dead = db.store.search_dead(&filter.clone().into(), 10).await.unwrap().items;
        let ended = db.store.search_archive(&filter.into(), 10).await.unwrap().items;
        let dead = dead.into_iter().map(|letter| letter.task);
        tasks.into_iter().chain(dead).chain(ended.into_iter().map(|entry| entry.task)).collect::<Vec<_>>()
    };
    let (whole, bare) = (lists(false).await, lists(true).await);
    assert!(whole.len() == 3 && whole.iter().all(|task| !task.params.is_empty()), "{whole:?}");
    let emptied = |task: Task| Task { params: String::new(), ..task };
    assert_eq!(bare, whole.into_iter().map(emptied).collect::<Vec<_>>());
}
