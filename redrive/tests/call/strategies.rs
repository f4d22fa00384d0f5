//! Source 2's five strategies.

use std::time::Duration;

use redrive::store::EndedAs;
use redrive::testing::{Fault, Faults};
use redrive::{CallError, Cause, Persist, Policy, Status};

use crate::harness::{Db, options, stores};
use crate::pay::{Answer, PayError, Receipt, Shop, Word, deferred, pay, slow};

stores!(
    source_2_retry_only_writes_the_first_failure_that_needs_a_retry,
    source_2_retry_only_passes_a_business_error_to_the_caller_and_writes_nothing,
    source_2_retry_only_writes_nothing_of_a_success,
    source_2_on_failure_writes_a_failure_that_needs_a_retry,
    source_2_on_failure_writes_a_business_error_too_and_removes_it_at_once,
    source_2_always_writes_before_the_method_runs,
    source_2_always_keeps_a_failure_pending_with_its_next_time,
    source_2_always_deletes_a_final_failure,
    source_2_manual_writes_only_what_it_is_told_to,
    source_2_never_retries_in_memory_and_writes_nothing,
    never_gives_up_as_its_policy_says,
    never_snoozes_no_longer_than_its_policy_says,
    always_does_not_run_beside_a_living_twin,
    a_first_try_that_exhausts_is_a_dead_letter,
    a_first_try_of_a_paused_method_is_not_made,
    a_panic_and_a_timeout_of_the_first_try_are_failures,
    retries_have_the_id_and_the_key_of_the_first_try,
    a_database_that_is_down_is_never_called_deferred,
    an_answer_that_is_lost_makes_one_task,
    a_success_whose_callback_cannot_be_written_is_not_called_a_failure,
    a_try_under_always_is_cut_off_when_the_node_gives_its_task_back,
    a_call_under_always_is_left_to_others_while_the_node_stops,
);

async fn source_2_retry_only_writes_the_first_failure_that_needs_a_retry(db: Db) {
    let mut shop = Shop::open(&db, [Answer::Timeout]).await;
    let id = deferred(shop.redrive.call(pay(1).policy(slow())).await);
    let task = shop.redrive.get(id).await.unwrap().unwrap();
    assert_eq!((task.status, task.attempts), (Status::Pending, 1));
    let error = task.last_error.unwrap();
    assert_eq!((error.kind.as_str(), &*error.message), ("timeout", "no answer"));
    assert_eq!(task.due.since(task.created_at).as_secs(), 3600);
    assert!(!shop.next_try().await.stored);
    shop.redrive.retry_now(id, None).await.unwrap();
    let again = shop.next_try().await;
    assert_eq!((again.stored, again.attempt, again.id), (true, 2, id));
    shop.close().await;
    assert_eq!(db.count("retry_task").await, 0);
}

async fn source_2_retry_only_passes_a_business_error_to_the_caller_and_writes_nothing(db: Db) {
    let shop = Shop::open(&db, [Answer::Declined]).await;
    let called = shop.redrive.call(pay(1)).await;
    assert!(matches!(called, Err(CallError::Rejected { cause: Cause::Error(PayError::Declined) })), "{called:?}");
    shop.close().await;
    assert_eq!(db.count("retry_task").await + db.count("retry_dead").await + db.count("retry_archive").await, 0);
}

async fn source_2_retry_only_writes_nothing_of_a_success(db: Db) {
    let shop = Shop::open(&db, []).await;
    assert_eq!(shop.redrive.call(pay(1)).await.unwrap(), Receipt { code: 200 });
    shop.close().await;
    assert_eq!(db.count("retry_task").await + db.count("retry_archive").await, 0);
}

async fn source_2_on_failure_writes_a_failure_that_needs_a_retry(db: Db) {
    let shop = Shop::open(&db, [Answer::Timeout]).await;
    let id = deferred(shop.redrive.call(pay(1).persist(Persist::OnFailure).policy(slow())).await);
    assert_eq!(shop.redrive.get(id).await.unwrap().unwrap().status, Status::Pending);
    shop.close().await;
}

async fn source_2_on_failure_writes_a_business_error_too_and_removes_it_at_once(db: Db) {
    let shop = Shop::open(&db, [Answer::Declined]).await;
    let called = shop.redrive.call(pay(1).persist(Persist::OnFailure)).await;
    assert!(matches!(called, Err(CallError::Rejected { cause: Cause::Error(PayError::Declined) })), "{called:?}");
    let archived = db.store.archive(&Default::default(), 10).await.unwrap();
    assert_eq!(archived.len(), 1);
    assert_eq!((archived[0].ended_as, archived[0].task.attempts), (EndedAs::Rejected, 1));
    assert_eq!(archived[0].task.last_error.as_ref().unwrap().message, "the card was declined");
    shop.close().await;
    assert_eq!(db.count("retry_task").await + db.count("retry_dead").await, 0);
}

async fn source_2_always_writes_before_the_method_runs(db: Db) {
    let mut shop = Shop::open(&db, [Answer::Hang]).await;
    let redrive = shop.redrive.clone();
    let calling = tokio::spawn(async move { redrive.call(pay(1).persist(Persist::Always)).await.map_err(drop) });
    let tried = shop.next_try().await;
    let task = shop.redrive.get(tried.id).await.unwrap().unwrap();
    assert_eq!((task.status, task.attempts), (Status::Running, 0));
    calling.abort();
    // Given back, it succeeds.
    assert!(shop.next_try().await.stored);
    shop.close().await;
    assert_eq!(db.count("retry_task").await, 0);

    let mut shop = Shop::open(&db, []).await;
    assert_eq!(shop.redrive.call(pay(2).persist(Persist::Always)).await.unwrap(), Receipt { code: 200 });
    assert_eq!(shop.next_try().await.attempt, 1);
    shop.close().await;
    assert_eq!(db.count("retry_task").await, 0, "a success is deleted");
}

async fn source_2_always_keeps_a_failure_pending_with_its_next_time(db: Db) {
    let shop = Shop::open(&db, [Answer::Timeout]).await;
    let id = deferred(shop.redrive.call(pay(1).persist(Persist::Always).policy(slow())).await);
    shop.close().await;
    let task = db.store.get(id).await.unwrap().unwrap();
    assert_eq!((task.status, task.attempts), (Status::Pending, 1));
    assert!(task.due.since(task.created_at).as_secs() >= 3600);
    assert!(task.last_error.is_some());
}

async fn source_2_always_deletes_a_final_failure(db: Db) {
    let shop = Shop::open(&db, [Answer::Declined]).await;
    let called = shop.redrive.call(pay(1).persist(Persist::Always)).await;
    assert!(matches!(called, Err(CallError::Rejected { .. })), "{called:?}");
    shop.close().await;
    assert_eq!((db.count("retry_task").await, db.count("retry_dead").await), (0, 1));
}

async fn source_2_manual_writes_only_what_it_is_told_to(db: Db) {
    let shop = Shop::open(&db, [Answer::Timeout, Answer::Say(Word::Persist)]).await;
    let manual = |order| pay(order).persist(Persist::Manual).policy(slow());
    let called = shop.redrive.call(manual(1)).await;
    assert!(matches!(called, Err(CallError::Failed { cause: Cause::Error(PayError::Timeout) })), "{called:?}");
    assert_eq!(db.count("retry_task").await, 0);
    let id = deferred(shop.redrive.call(manual(2)).await);
    assert_eq!(shop.redrive.get(id).await.unwrap().unwrap().attempts, 1);
    shop.redrive.enqueue_at(redrive::Timestamp::MAX, manual(3)).await.unwrap();
    assert_eq!(db.count("retry_task").await, 2, "and what the caller enqueues");
    shop.close().await;
}

async fn source_2_never_retries_in_memory_and_writes_nothing(db: Db) {
    let mut shop = Shop::open(&db, [Answer::Timeout, Answer::Code(500), Answer::Say(Word::Snooze)]).await;
    let never = pay(1).persist(Persist::Never);
    let never = Policy {
        success_if: Some("result.code < 300".into()),
        ..redrive::Retryable::policy(&never, Policy::default())
    };
    let called = shop.redrive.call(pay(1).persist(Persist::Never).policy(never)).await;
    assert_eq!(called.unwrap(), Receipt { code: 200 });
    let attempts = [shop.next_try().await, shop.next_try().await, shop.next_try().await, shop.next_try().await];
    assert_eq!(attempts.map(|t| (t.attempt, t.stored)), [(1, false), (2, false), (3, false), (3, false)]);
    shop.close().await;
    assert_eq!(db.count("retry_task").await + db.count("retry_archive").await + db.count("retry_dead").await, 0);
}

async fn never_gives_up_as_its_policy_says(db: Db) {
    let shop = Shop::open(&db, vec![Answer::Timeout; 3]).await;
    let policy = Policy { max_attempts: Some(3), ..crate::pay::quick(Policy::default()) };
    let called = shop.redrive.call(pay(1).persist(Persist::Never).policy(policy)).await;
    assert!(matches!(called, Err(CallError::Exhausted { task_id: None, .. })), "{called:?}");
    shop.answer(Answer::Declined);
    let called = shop.redrive.call(pay(1).persist(Persist::Never)).await;
    assert!(matches!(called, Err(CallError::Rejected { .. })), "{called:?}");
    shop.close().await;
}

async fn never_snoozes_no_longer_than_its_policy_says(db: Db) {
    let shop = Shop::open(&db, vec![Answer::Say(Word::Snooze); 1_000]).await;
    let policy = Policy { max_duration: Some(Duration::from_millis(50)), ..Policy::default() };
    let called = shop.redrive.call(pay(1).persist(Persist::Never).policy(policy)).await;
    assert!(matches!(called, Err(CallError::Exhausted { task_id: None, .. })), "{called:?}");
    shop.close().await;
}

async fn always_does_not_run_beside_a_living_twin(db: Db) {
    let mut shop = Shop::open(&db, [Answer::Timeout]).await;
    let always = || pay(1).persist(Persist::Always).policy(slow());
    let id = deferred(shop.redrive.call(always()).await);
    let called = shop.redrive.call(always()).await;
    let twin = matches!(called, Err(CallError::Deferred { task_id, existed: true, cause: None }) if task_id == id);
    assert!(twin, "{called:?}");
    shop.next_try().await;
    assert!(shop.tries.try_recv().is_err(), "tried once");
    shop.close().await;
}

async fn a_first_try_that_exhausts_is_a_dead_letter(db: Db) {
    let shop = Shop::open(&db, [Answer::Timeout]).await;
    let once = Policy { max_attempts: Some(1), ..Policy::default() };
    let called = shop.redrive.call(pay(1).policy(once)).await;
    let Err(CallError::Exhausted { task_id: Some(id), .. }) = called else { panic!("{called:?}") };
    shop.close().await;
    let dead = db.store.dead(&Default::default(), 10).await.unwrap();
    assert_eq!((dead.len(), dead[0].task.id, dead[0].task.attempts), (1, id, 1));
}

async fn a_first_try_of_a_paused_method_is_not_made(db: Db) {
    let mut shop = Shop::open(&db, []).await;
    shop.redrive.pause("pay", Some("ada")).await.unwrap();
    let id = deferred(shop.redrive.call(pay(1)).await);
    let refused = shop.redrive.call(pay(2).persist(Persist::Never)).await;
    assert!(matches!(refused, Err(CallError::Rejected { cause: Cause::Paused })), "{refused:?}");
    shop.redrive.resume("pay", Some("ada")).await.unwrap();
    let first = shop.next_try().await;
    assert_eq!((first.id, first.attempt), (id, 1));
    shop.redrive.call(pay(2).persist(Persist::Never)).await.unwrap();
    shop.close().await;
}

async fn a_panic_and_a_timeout_of_the_first_try_are_failures(db: Db) {
    let shop = Shop::open(&db, [Answer::Panic, Answer::Hang]).await;
    let called = shop.redrive.call(pay(1).policy(slow())).await;
    let Err(CallError::Deferred { cause: Some(Cause::Panic(said)), .. }) = called else { panic!("{called:?}") };
    assert!(said.contains("oh no"));
    let timeout = Some(std::time::Duration::from_millis(10));
    let called = shop.redrive.call(pay(2).policy(Policy { timeout, ..slow() })).await;
    let Err(CallError::Deferred { task_id, cause: Some(Cause::Timeout(_)), .. }) = called else { panic!("{called:?}") };
    assert_eq!(shop.redrive.get(task_id).await.unwrap().unwrap().last_error.unwrap().kind.as_str(), "timeout");
    shop.close().await;
}

async fn retries_have_the_id_and_the_key_of_the_first_try(db: Db) {
    let mut shop = Shop::open(&db, [Answer::Timeout]).await;
    let id = deferred(shop.redrive.call(pay(1)).await);
    let (first, second) = (shop.next_try().await, shop.next_try().await);
    assert_eq!((first.id, second.id), (id, id));
    assert_eq!((first.attempt, second.attempt), (1, 2));
    assert!(first.key.as_ref().is_some_and(|key| key.starts_with("pay:")) && first.key == second.key);
    shop.close().await;
}

/// The same database through a store that fails on purpose, and does not try again for longer than this.
async fn faulty(db: &Db, retry_for: Duration) -> (Db, Faults) {
    let mut options = options();
    options.retry_for = retry_for;
    let faults = Faults::default();
    options.faults = Some(faults.clone());
    (Db::at(db.kind, db.url.clone(), options).await, faults)
}

async fn a_database_that_is_down_is_never_called_deferred(db: Db) {
    let (faulty, faults) = faulty(&db, Duration::from_millis(300)).await;
    let shop = Shop::open(&faulty, [Answer::Timeout]).await;
    faults.set_down(true);
    let called = shop.redrive.call(pay(1)).await;
    let Err(CallError::NotRecorded { cause: Some(Cause::Error(PayError::Timeout)), source }) = called else {
        panic!("{called:?}")
    };
    assert!(source.is_transient(), "{source}");
    let called = shop.redrive.call(pay(2).persist(Persist::Always)).await;
    assert!(matches!(called, Err(CallError::NotRecorded { cause: None, .. })), "it is not even tried: {called:?}");
    assert_eq!(shop.redrive.call(pay(3)).await.unwrap(), Receipt { code: 200 }, "a success needs no database");
    faults.set_down(false);
    shop.close().await;
    assert_eq!(db.count("retry_task").await, 0);
}

async fn an_answer_that_is_lost_makes_one_task(db: Db) {
    let (faulty, faults) = faulty(&db, Duration::from_secs(30)).await;
    let shop = Shop::open(&faulty, [Answer::Timeout]).await;
    (0..5).for_each(|_| faults.next_write(Fault::FailAfterCommit)); // beats meet some of them
    deferred(shop.redrive.call(pay(1).policy(slow())).await);
    assert_eq!(db.count("retry_task").await, 1);
    shop.close().await;
}

async fn a_success_whose_callback_cannot_be_written_is_not_called_a_failure(db: Db) {
    let (faulty, faults) = faulty(&db, Duration::from_millis(300)).await;
    let shop = Shop::open(&faulty, []).await;
    faults.set_down(true);
    let told = Policy { on_success: Some("paid".into()), ..Policy::default() };
    let called = shop.redrive.call(pay(1).policy(told)).await;
    let Err(CallError::NotRecorded { cause: Some(Cause::Untold(receipt)), .. }) = &called else { panic!("{called:?}") };
    assert_eq!(receipt.code, 200);
    assert!(called.unwrap_err().to_string().contains("it succeeded"));
    faults.set_down(false);
    shop.close().await;
}

async fn a_call_under_always_is_left_to_others_while_the_node_stops(db: Db) {
    let mut shop = Shop::open(&db, [Answer::Hang]).await;
    let redrive = shop.redrive.clone();
    let calling = tokio::spawn(async move { redrive.call(pay(1).persist(Persist::Always)).await });
    shop.next_try().await;
    let redrive = shop.redrive.clone();
    let stopping = tokio::spawn(async move { redrive.stop().await });
    while !db.store.nodes().await.unwrap().iter().any(|node| node.leaving) {}
    let called = shop.redrive.call(pay(2).persist(Persist::Always)).await;
    let Err(CallError::Deferred { task_id: id, existed: false, cause: None }) = called else { panic!("{called:?}") };
    let task = db.store.get(id).await.unwrap().unwrap();
    assert_eq!((task.status, task.attempts, task.locked_by), (Status::Pending, 0, None), "it waits for another node");
    stopping.await.unwrap();
    calling.await.unwrap().unwrap_err();
}

async fn a_try_under_always_is_cut_off_when_the_node_gives_its_task_back(db: Db) {
    let mut quick = crate::pay::config();
    quick.grace = Duration::from_millis(50);
    let mut shop = Shop::with(&db, [Answer::Hang], |builder| builder.config(quick)).await;
    let redrive = shop.redrive.clone();
    let calling = tokio::spawn(async move { redrive.call(pay(1).persist(Persist::Always)).await });
    let id = shop.next_try().await.id;
    shop.redrive.stop().await;
    let called = calling.await.unwrap();
    let deferred = matches!(called, Err(CallError::Deferred { task_id, existed: false, cause: None }) if task_id == id);
    assert!(deferred, "{called:?}");
    let task = db.store.get(id).await.unwrap().unwrap();
    assert_eq!((task.status, task.attempts), (Status::Pending, 0));
}
