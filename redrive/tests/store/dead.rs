use std::sync::Arc;
use std::time::Duration;

use redrive::store::{DeadFilter, EndedAs, Redriven, TaskFilter};
use redrive::{NewTask, Policy, TaskId};

use crate::harness::*;

layouts!(
    redrive_makes_a_new_task,
    what_is_brought_back_again_and_again_is_known_by_its_first_id,
    redrive_drops_a_deadline_that_has_passed,
    redrive_may_bring_a_new_policy,
    a_living_twin_keeps_the_letter_dead,
    two_letters_of_one_key_become_one_task,
    two_people_redrive_each_letter_once,
    resolve_and_discard_close_letters_with_a_note,
    letters_are_listed_like_tasks,
);

async fn dead(db: &Db, new: NewTask) -> TaskId {
    let id = add(&db.store, new).await;
    db.store.fail(id, NOW).await.unwrap();
    id
}

async fn redrive_makes_a_new_task(db: Db) {
    let (task, node) = claimed(&db.store, new(1).business("order", "7")).await;
    end(&db.store, &task, timeout(), NOW).await;
    db.store.fail(task.id, NOW).await.unwrap();
    let went = db.store.redrive(&[task.id], None, "alice", later(100)).await.unwrap();
    let [Redriven::As(id)] = went[..] else { panic!("{went:?}") };
    let t = db.store.get(id).await.unwrap().unwrap();
    assert_eq!(
        (t.origin_id, t.attempts, t.crashes, t.due, t.created_at),
        (Some(task.id), 0, 0, later(100), later(100))
    );
    assert_eq!(
        (t.key, t.params, t.business, t.created_by.as_deref()),
        (task.key, task.params, task.business, Some("alice"))
    );
    let kept = db.store.archive(&Default::default(), 10).await.unwrap().pop().unwrap();
    assert_eq!((kept.ended_as, kept.redriven_as, kept.task.attempts), (EndedAs::Redriven, Some(id), 1));
    assert_eq!(db.count("retry_dead").await, 0);
    assert_eq!(claim_all(&db.store, node, later(100)).await.tasks.len(), 1);
    assert_eq!(db.store.redrive(&[task.id], None, "bob", later(101)).await.unwrap(), [Redriven::Gone]);
}

async fn what_is_brought_back_again_and_again_is_known_by_its_first_id(db: Db) {
    let first = dead(&db, new(1).no_key()).await;
    let mut letter = first;
    for n in 1..4 {
        let went = db.store.redrive(&[letter], None, "alice", later(n)).await.unwrap();
        let [Redriven::As(id)] = went[..] else { panic!("{went:?}") };
        let task = db.store.get(id).await.unwrap().unwrap();
        assert_eq!((task.key, task.origin_id), (Some(first.to_string()), Some(letter)));
        db.store.fail(id, later(n)).await.unwrap();
        letter = id;
    }
}

async fn redrive_drops_a_deadline_that_has_passed(db: Db) {
    let policy = |deadline| Policy {
        deadline: Some(deadline),
        max_duration: Some(Duration::from_secs(60)),
        ..Policy::default()
    };
    let ids = [dead(&db, new(1).policy(policy(later(50)))).await, dead(&db, new(2).policy(policy(later(500)))).await];
    let went = db.store.redrive(&ids, None, "alice", later(100)).await.unwrap();
    let mut deadlines = Vec::new();
    for redriven in went {
        let Redriven::As(id) = redriven else { panic!() };
        let t = db.store.get(id).await.unwrap().unwrap();
        assert_eq!(t.policy.limit(t.created_at), Some(later(160)), "the duration begins anew");
        deadlines.push(t.policy.deadline);
    }
    assert_eq!(deadlines, [None, Some(later(500))]);
}

async fn redrive_may_bring_a_new_policy(db: Db) {
    let id = dead(&db, new(1)).await;
    let policy = Arc::new(Policy { max_attempts: Some(2), ..Policy::default() });
    let went = db.store.redrive(&[id], Some(policy), "alice", NOW).await.unwrap();
    let Redriven::As(id) = went[0] else { panic!() };
    assert_eq!(db.store.get(id).await.unwrap().unwrap().policy.max_attempts, Some(2));
}

async fn a_living_twin_keeps_the_letter_dead(db: Db) {
    let ids = [dead(&db, new(1)).await, dead(&db, new(2)).await];
    let twin = add(&db.store, new(1)).await;
    let went = db.store.redrive(&ids, None, "alice", later(1)).await.unwrap();
    assert_eq!(went[0], Redriven::Twin(twin));
    assert!(matches!(went[1], Redriven::As(_)), "the others go on");
    assert!(db.store.get_dead(ids[0]).await.unwrap().is_some());
    assert_eq!((db.count("retry_dead").await, db.count("retry_task").await), (1, 2));
}

async fn two_letters_of_one_key_become_one_task(db: Db) {
    let ids = [dead(&db, new(1).key("k")).await, dead(&db, new(2).key("k")).await, dead(&db, new(3).no_key()).await];
    let went = db.store.redrive(&ids, None, "alice", later(1)).await.unwrap();
    let revived = went.iter().filter(|r| matches!(r, Redriven::As(_))).count();
    assert_eq!((revived, db.count("retry_dead").await, db.count("retry_task").await), (2, 1, 2));
}

async fn two_people_redrive_each_letter_once(db: Db) {
    let mut ids = Vec::new();
    for n in 0..50 {
        ids.push(dead(&db, new(n)).await);
    }
    let other = db.another().await;
    let (one, two) = tokio::join!(db.store.redrive(&ids, None, "alice", NOW), other.redrive(&ids, None, "bob", NOW));
    let revived = one.unwrap().into_iter().chain(two.unwrap()).filter(|r| matches!(r, Redriven::As(_))).count();
    assert_eq!((revived, db.count("retry_task").await, db.count("retry_archive").await), (50, 50, 50));
}

async fn resolve_and_discard_close_letters_with_a_note(db: Db) {
    let ids = [dead(&db, new(1)).await, dead(&db, new(2)).await];
    assert_eq!(db.store.resolve(&ids[..1], "alice", Some("paid by hand"), later(1)).await.unwrap(), 1);
    assert_eq!(db.store.discard(&ids, "bob", None, later(2)).await.unwrap(), 1, "the other is closed already");
    let mut kept = db.store.archive(&Default::default(), 10).await.unwrap();
    kept.sort_by_key(|a| a.ended_at);
    assert_eq!(
        (kept[0].ended_as, kept[0].ended_by.as_deref(), kept[0].note.as_deref()),
        (EndedAs::Resolved, Some("alice"), Some("paid by hand"))
    );
    assert_eq!(
        (kept[1].ended_as, kept[1].ended_by.as_deref(), kept[1].note.as_deref()),
        (EndedAs::Discarded, Some("bob"), None)
    );
    assert_eq!(db.count("retry_dead").await, 0);
    for nobody in ["", &"x".repeat(101), "a\0"] {
        assert!(db.store.resolve(&ids, nobody, None, NOW).await.is_err(), "someone must answer for it");
        assert!(db.store.redrive(&ids, None, nobody, NOW).await.is_err());
    }
}

async fn letters_are_listed_like_tasks(db: Db) {
    for n in 0..5 {
        dead(&db, new(n).business("order", format!("{}", n % 2))).await;
    }
    let filter = TaskFilter { business_id: Some("1".into()), method: Some("m".into()), ..TaskFilter::default() };
    assert_eq!(db.store.dead(&filter.into(), 10).await.unwrap().len(), 2);
    assert_eq!(db.store.dead(&DeadFilter::default(), 3).await.unwrap().len(), 3);
}
