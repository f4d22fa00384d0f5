//! What people do to many at once.

use std::ops::ControlFlow;
use std::sync::Arc;

use redrive::store::{
    AuditFilter, Bulk, BulkResult, Count, DeadAction, DeadFilter, EndedAs, Exactness, Step, TaskAction, TaskFilter,
    Which,
};
use redrive::{Clock, NewTask, Policy, TaskId, Timestamp};

use crate::harness::*;

layouts!(
    all_that_a_filter_finds_is_cancelled,
    running_tasks_are_asked_to_stop,
    retry_now_passes_over_what_runs,
    letters_are_redriven_and_twins_stay,
    letters_are_closed_with_a_note,
    ids_that_are_gone_are_counted,
    a_rate_is_kept,
    it_can_be_stopped_between_batches,
    the_guilty_are_named_and_the_others_done,
    a_bulk_has_one_record_that_grows,
    the_policy_that_letters_are_given_is_in_the_record,
    nonsense_is_refused,
);

/// As a server does it: in a task of its own.
async fn run(db: &Db, bulk: Bulk) -> BulkResult {
    let store = db.store.clone();
    let run = async move { store.bulk(bulk, &Clock::manual(later(1)), |_| ControlFlow::Continue(())).await };
    tokio::spawn(run).await.unwrap().unwrap()
}

fn of_m() -> TaskFilter {
    TaskFilter { method: Some("m".into()), ..TaskFilter::default() }
}

async fn dry(db: &Db, bulk: &Bulk) -> Count {
    db.store.dry_run(bulk).await.unwrap()
}

fn exactly(n: u64) -> Count {
    Count { n, exactness: Exactness::Exact }
}

async fn dead_letters(db: &Db, n: u64) -> Vec<TaskId> {
    let ids = add_many(&db.store, n).await;
    let bulk = Bulk::tasks(TaskAction::Fail, Which::Ids(ids.clone()), "setup");
    assert_eq!(run(db, bulk).await.done, n);
    ids
}

async fn all_that_a_filter_finds_is_cancelled(db: Db) {
    add_many(&db.store, 1_203).await;
    let other = add(&db.store, NewTask::new("other", &1).unwrap()).await;
    let bulk = Bulk::tasks(TaskAction::Cancel, Which::Filter(of_m()), "ada");
    assert_eq!(dry(&db, &bulk).await, exactly(1_203));
    assert_eq!(db.count("retry_archive").await, 0, "a dry run does nothing");
    let result = run(&db, bulk.clone()).await;
    assert_eq!((result.done, result.total(), result.failed), (1_203, 1_203, 0));
    assert_eq!((db.count("retry_task").await, db.count("retry_archive").await), (1, 1_203));
    assert!(db.store.get(other).await.unwrap().is_some() && db.count("redrive_key").await == 1);
    assert_eq!(dry(&db, &bulk).await, exactly(0));
}

async fn running_tasks_are_asked_to_stop(db: Db) {
    let mut ids = add_many(&db.store, 5).await;
    let me = node(&db.store).await;
    let running = claim_all(&db.store, me, NOW).await.tasks;
    let more = db.store.insert((100..115).map(new).collect(), NOW).await.unwrap();
    ids.extend(more.iter().map(|enqueued| enqueued.id));
    let result = run(&db, Bulk::tasks(TaskAction::Fail, Which::Ids(ids), "ada")).await;
    assert_eq!((result.done, result.requested), (15, 5));
    assert_eq!(db.count("retry_task WHERE cancel_requested = 2").await, 5);
    for task in &running {
        end(&db.store, task, timeout(), NOW).await;
    }
    assert_eq!((db.count("retry_dead").await, db.count("retry_task").await), (20, 0));
}

async fn retry_now_passes_over_what_runs(db: Db) {
    add_many(&db.store, 5).await;
    let me = node(&db.store).await;
    let running = claim_all(&db.store, me, NOW).await.tasks.len() as u64;
    db.store
        .insert((100..130).map(|n| new(n).delay(std::time::Duration::from_secs(600))).collect(), NOW)
        .await
        .unwrap();
    let result = run(&db, Bulk::tasks(TaskAction::RetryNow, Which::Filter(of_m()), "ada")).await;
    assert_eq!((result.done, result.skipped.get("running").copied()), (35 - running, Some(running)));
    assert_eq!(claim_all(&db.store, me, later(1)).await.tasks.len() as u64, 35 - running);
    assert_eq!(db.count("retry_task WHERE updated_by = 'ada'").await as u64, 35 - running);
}

async fn letters_are_redriven_and_twins_stay(db: Db) {
    let ids = dead_letters(&db, 700).await;
    let twin = add(&db.store, new(5)).await;
    let policy = Arc::new(Policy { max_attempts: Some(3), ..Policy::default() });
    let bulk = Bulk::dead(DeadAction::Redrive(Some(policy)), Which::Filter(of_m().into()), "ada");
    assert_eq!(dry(&db, &bulk).await, exactly(700));
    let result = run(&db, bulk).await;
    assert_eq!((result.done, result.skipped.get("twin").copied()), (699, Some(1)));
    assert_eq!((db.count("retry_dead").await, db.count("retry_task").await), (1, 700));
    assert!(db.store.get_dead(ids[5]).await.unwrap().is_some() && db.store.get(twin).await.unwrap().is_some());
    assert_eq!(db.count("retry_task WHERE max_attempts = 3").await, 699);
}

async fn letters_are_closed_with_a_note(db: Db) {
    let ids = dead_letters(&db, 10).await;
    let mut resolve = Bulk::dead(DeadAction::Resolve, Which::Ids(ids[..4].to_vec()), "ada");
    resolve.note = Some("paid by hand".into());
    assert_eq!(run(&db, resolve).await.done, 4);
    assert_eq!(run(&db, Bulk::dead(DeadAction::Discard, Which::Filter(DeadFilter::default()), "bob")).await.done, 6);
    let kept = db.store.archive(&Default::default(), 100).await.unwrap();
    let resolved = kept.iter().filter(|a| a.ended_as == EndedAs::Resolved && a.note.as_deref() == Some("paid by hand"));
    let discarded = kept.iter().filter(|a| a.ended_as == EndedAs::Discarded && a.ended_by.as_deref() == Some("bob"));
    assert_eq!((resolved.count(), discarded.count()), (4, 6));
}

async fn ids_that_are_gone_are_counted(db: Db) {
    let ids = dead_letters(&db, 3).await;
    let twice = [ids.clone(), ids.clone(), vec![TaskId::from_i64(1), TaskId::from_i64(2)]].concat();
    for action in [DeadAction::Redrive(None), DeadAction::Discard] {
        let bulk = Bulk::dead(action, Which::Ids(twice.clone()), "ada");
        let there = dry(&db, &bulk).await.n;
        let result = run(&db, bulk).await;
        assert_eq!((result.done, result.skipped.get("gone").copied()), (there, Some(5 - there)));
    }
    assert_eq!(run(&db, Bulk::tasks(TaskAction::Cancel, Which::Ids(ids), "ada")).await.skipped["gone"], 3);
    assert_eq!(run(&db, Bulk::dead(DeadAction::Resolve, Which::Ids(Vec::new()), "ada")).await, BulkResult::default());
}

async fn a_rate_is_kept(db: Db) {
    add_many(&db.store, 25).await;
    let mut bulk = Bulk::tasks(TaskAction::Cancel, Which::Filter(of_m()), "ada");
    bulk.per_second = Some(10);
    let mut run = db.store.begin_bulk(bulk, NOW).await.unwrap();
    assert_eq!((run.step(NOW).await.unwrap(), run.result().done), (Step::More, 10));
    let early = NOW + std::time::Duration::from_millis(999);
    assert_eq!((run.step(early).await.unwrap(), run.result().done), (Step::Wait(later(1)), 10));
    assert_eq!((run.step(later(1)).await.unwrap(), run.result().done), (Step::More, 20));
    assert_eq!((run.step(later(2)).await.unwrap(), run.result().done), (Step::Finished, 25));
    assert_eq!(run.step(later(2)).await.unwrap(), Step::Finished);
}

async fn it_can_be_stopped_between_batches(db: Db) {
    add_many(&db.store, 30).await;
    let mut bulk = Bulk::tasks(TaskAction::Cancel, Which::Filter(of_m()), "ada");
    bulk.batch = 10;
    let mut told = Vec::new();
    let stop = |so_far: &BulkResult| {
        told.push(so_far.done);
        if so_far.done >= 20 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let result = db.store.bulk(bulk.clone(), &Clock::manual(NOW), stop).await.unwrap();
    assert_eq!((result.done, told, db.count("retry_task").await), (20, vec![10, 20], 10));
    assert_eq!(run(&db, bulk).await.done, 10, "beginning again goes on with the rest");
}

/// A row that cannot be read, as someone's own SQL may leave it.
/// What makes the database refuse to delete a dead letter.
fn refusing_to_delete(kind: Kind, id: TaskId) -> String {
    let id = id.as_i64();
    match kind {
        Kind::Sqlite => format!(
            "CREATE TRIGGER refuse BEFORE DELETE ON retry_dead WHEN OLD.id = {id} BEGIN SELECT RAISE(ABORT, 'refused'); END"
        ),
        Kind::Postgres => format!(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             IF OLD.id = {id} THEN RAISE EXCEPTION 'refused'; END IF; RETURN OLD; END $$; \
             CREATE TRIGGER refuse BEFORE DELETE ON retry_dead FOR EACH ROW EXECUTE FUNCTION refuse()"
        ),
        Kind::MySql => format!(
            "CREATE TRIGGER refuse BEFORE DELETE ON retry_dead FOR EACH ROW IF OLD.id = {id} THEN \
             SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused'; END IF"
        ),
    }
}

async fn the_guilty_are_named_and_the_others_done(db: Db) {
    let ids = dead_letters(&db, 5).await;
    let broken = ids[2];
    let mut raw = Raw::connect(&db).await;
    raw.sql(&refusing_to_delete(db.kind, broken)).await.unwrap();
    let result = run(&db, Bulk::dead(DeadAction::Resolve, Which::Ids(ids), "ada")).await;
    assert_eq!((result.done, result.failed, result.failures.len()), (4, 1, 1));
    assert!(result.failures[0].0 == broken && result.failures[0].1.contains("refused"), "{:?}", result.failures);
    assert_eq!(db.count("retry_dead").await, 1);
}

async fn a_bulk_has_one_record_that_grows(db: Db) {
    add_many(&db.store, 25).await;
    let mut bulk = Bulk::tasks(TaskAction::Cancel, Which::Filter(of_m()), "ada");
    (bulk.batch, bulk.note) = (10, Some("INC-7".into()));
    let mut run = db.store.begin_bulk(bulk, NOW).await.unwrap();
    let record = async || {
        let mut records = db.store.audits(&AuditFilter::default(), 10).await.unwrap();
        assert_eq!(records.len(), 1);
        records.pop().unwrap().entry
    };
    let first = record().await;
    assert_eq!(
        (&*first.action, &*first.who, first.note.as_deref(), first.after),
        ("task.cancel", "ada", Some("INC-7"), None)
    );
    assert_eq!(first.before.unwrap()["which"], serde_json::json!({ "method": "m" }));
    let mut done = Vec::new();
    while run.step(NOW).await.unwrap() != Step::Finished {
        done.push(record().await.after.unwrap()["result"]["done"].as_u64().unwrap());
    }
    let last = record().await.after.unwrap();
    assert_eq!((done, &last["result"]["done"], &last["finished"]), (vec![10, 20], &25.into(), &true.into()));
}

async fn the_policy_that_letters_are_given_is_in_the_record(db: Db) {
    let policy = Policy { max_attempts: Some(2), ..Policy::default() };
    let action = DeadAction::Redrive(Some(policy.into()));
    db.store.begin_bulk(Bulk::dead(action, Which::Ids(Vec::new()), "ada"), NOW).await.unwrap();
    let record = db.store.audits(&AuditFilter::default(), 10).await.unwrap().remove(0).entry;
    assert_eq!(record.before.unwrap()["policy"]["max_attempts"], 2);
}

async fn nonsense_is_refused(db: Db) {
    let bulk = Bulk::tasks(TaskAction::Cancel, Which::Filter(TaskFilter::default()), "ada");
    let mut wrong = [bulk.clone(), bulk.clone(), bulk.clone(), bulk];
    wrong[0].by = String::new();
    wrong[1].batch = 0;
    wrong[2].batch = 501;
    wrong[3].per_second = Some(0);
    for bulk in wrong {
        assert!(db.store.begin_bulk(bulk, Timestamp::EPOCH).await.is_err());
    }
    assert_eq!(db.count("redrive_audit").await, 0);
}
