//! Callbacks are tasks of their own, written with the end that they tell of.

use std::time::Duration;

use redrive::store::EndedAs;
use redrive::{
    CallError, Context, FinalFailure, GivenUp, NewTask, OnCrash, OnExhausted, Outcome, Persist, Policy, Succeeded,
    Verdict,
};
use tokio::sync::mpsc;

use crate::harness::{Db, NOW, add, claim_all, claimed, end, lanes, later, moment, new, node, stores, timeout};
use crate::pay::{Answer, Pay, Receipt, Shop, deferred, pay, quick, slow};

stores!(
    source_2_on_success_is_called_with_the_result,
    source_2_on_final_failure_is_called_with_what_happened,
    source_2_with_drop_the_callback_is_all_that_is_left,
    source_2_what_ends_without_an_attempt_calls_back_too,
    on_success_is_called_after_a_first_try_too,
    every_final_failure_calls_back,
    a_callback_is_a_call_of_its_method,
    a_first_try_that_is_rejected_does_not_call_back,
    a_failure_by_a_process_without_the_code_calls_back,
    a_task_that_is_cancelled_while_it_runs_calls_back,
    a_success_is_kept_if_asked,
);

enum Called {
    Success(Succeeded<Receipt>),
    Failure(Box<FinalFailure<Pay>>),
}

async fn open(db: &Db, answers: impl IntoIterator<Item = Answer>) -> (Shop, mpsc::UnboundedReceiver<Called>) {
    let (sender, called) = mpsc::unbounded_channel();
    let failures = sender.clone();
    let paid = move |_: Context<'static>, told: Succeeded<Receipt>| {
        _ = sender.send(Called::Success(told));
        std::future::ready(Ok::<(), Verdict>(()))
    };
    let refund = move |_: Context<'static>, told: FinalFailure<Pay>| {
        _ = failures.send(Called::Failure(Box::new(told)));
        std::future::ready(Ok::<(), Verdict>(()))
    };
    let shop = Shop::with(db, answers, |builder| builder.register("paid", paid).register("refund", refund)).await;
    (shop, called)
}

fn calling_back(policy: Policy) -> Policy {
    Policy { on_success: Some("paid".into()), on_final_failure: Some("refund".into()), ..policy }
}

async fn failure(called: &mut mpsc::UnboundedReceiver<Called>) -> FinalFailure<Pay> {
    match called.recv().await.unwrap() {
        Called::Failure(told) => *told,
        Called::Success(told) => panic!("{told:?}"),
    }
}

async fn source_2_on_success_is_called_with_the_result(db: Db) {
    let (shop, mut called) = open(&db, [Answer::Timeout, Answer::Code(201)]).await;
    let id = deferred(shop.redrive.call(pay(1).policy(calling_back(quick(Policy::default())))).await);
    let Some(Called::Success(told)) = called.recv().await else { panic!("not a success") };
    assert_eq!((told.task_id, &*told.method, told.attempt), (id, "pay", 2));
    assert_eq!(told.result, Receipt { code: 201 });
    shop.close().await;
    assert!(called.try_recv().is_err(), "once");
    assert_eq!(db.count("retry_task").await, 0);
}

async fn source_2_on_final_failure_is_called_with_what_happened(db: Db) {
    let (shop, mut called) = open(&db, vec![Answer::Timeout; 3]).await;
    let policy = Policy { max_attempts: Some(3), ..quick(Policy::default()) };
    let id = deferred(shop.redrive.call(pay(7).policy(calling_back(policy))).await);
    let told = failure(&mut called).await;
    assert_eq!((told.task_id, told.params.order, told.attempts), (id, 7, 3));
    assert_eq!((told.reason, told.error.as_deref()), (GivenUp::Exhausted, Some("no answer")));
    assert_eq!(told.error_kind.unwrap().as_str(), "timeout");
    shop.close().await;
}

async fn source_2_with_drop_the_callback_is_all_that_is_left(db: Db) {
    let (shop, mut called) = open(&db, vec![Answer::Timeout; 2]).await;
    let policy = Policy { max_attempts: Some(2), on_exhausted: OnExhausted::Drop, ..quick(Policy::default()) };
    let id = deferred(shop.redrive.call(pay(7).policy(calling_back(policy))).await);
    let told = failure(&mut called).await;
    assert_eq!((told.task_id, told.attempts, told.reason), (id, 2, GivenUp::Exhausted));
    shop.close().await;
    assert_eq!((db.count("retry_task").await, db.count("retry_dead").await), (0, 0));
}

async fn source_2_what_ends_without_an_attempt_calls_back_too(db: Db) {
    let expiring = Policy { deadline: Some(later(60)), ..Policy::default() };
    add(&db.store, new(1).policy(calling_back(expiring))).await;
    let me = node(&db.store).await;
    assert_eq!(claim_all(&db.store, me, later(60)).await.spent.len(), 1, "its time was up while it waited");
    let (task, _) = claimed(&db.store, new(2).policy(calling_back(Policy::default()))).await;
    end(&db.store, &task, Outcome::Undecodable("?".into()), NOW).await;
    let once = Policy { on_crash: OnCrash::Dead, ..Policy::default() };
    let (_, victim) = claimed(&db.store, new(3).policy(calling_back(once))).await;
    db.store.fence(victim, 0).await.unwrap();
    db.store.rescue(&lanes(), NOW, 10).await.unwrap();
    let told = db.store.list(&Default::default(), 10).await.unwrap();
    assert_eq!(told.iter().map(|task| &*task.method).collect::<Vec<_>>(), ["refund"; 3]);
    for reason in ["expired", "undecodable", "crashed"] {
        let wanted = format!(r#""reason":"{reason}""#);
        assert_eq!(told.iter().filter(|task| task.params.contains(&wanted)).count(), 1, "{reason}");
    }
}

async fn on_success_is_called_after_a_first_try_too(db: Db) {
    for (order, persist) in [(1, Persist::RetryOnly), (2, Persist::Always)] {
        let (shop, mut called) = open(&db, []).await;
        let call = pay(order).persist(persist).policy(calling_back(Policy::default()));
        assert_eq!(shop.redrive.call(call).await.unwrap(), Receipt { code: 200 });
        let Some(Called::Success(told)) = called.recv().await else { panic!("not a success") };
        assert_eq!((told.attempt, told.result.code), (1, 200));
        shop.close().await;
    }
}

/// A callback that has a policy of its own.
#[redrive::retryable(name = "owned_refund", max_attempts = 3, timeout = "7s", priority = 5)]
async fn owned_refund(_told: FinalFailure) -> Result<(), std::fmt::Error> {
    Ok(())
}

/// Calls again for as long as the node is cut off from its database, where it refuses a call that must be recorded first.
async fn call_until_recorded(shop: &Shop, call: Pay) -> redrive::Called<Pay> {
    let recorded = async {
        loop {
            match shop.redrive.call(call.clone()).await {
                Err(CallError::NotRecorded { .. }) => moment().await,
                other => break other,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), recorded).await.expect("the node stays cut off from its database")
}

/// However the task ends: by an attempt, by hand, in a first try; and the settings hold for it, too.
async fn a_callback_is_a_call_of_its_method(db: Db) {
    let settings = "[methods.owned_refund]\nmax_crashes = 9\n[methods.refund]\nmax_attempts = 2";
    let settings = redrive::Settings::parse(settings, [].into_iter()).unwrap();
    // More answers than calls: on a slow machine an attempt may be cut off and made again.
    let mut shop = Shop::with(&db, vec![Answer::Timeout; 100], |builder| builder.settings(settings)).await;
    shop.redrive.pause("owned_refund", None).await.unwrap();
    let calling = |method: &'static str, policy: Policy| Policy { on_final_failure: Some(method.into()), ..policy };
    let once = Policy { max_attempts: Some(1), ..Policy::default() };
    _ = shop.redrive.call(pay(1).policy(calling("owned_refund", once.clone()))).await.unwrap_err();
    let always = pay(2).persist(Persist::Always).policy(calling("owned_refund", once.clone()));
    let recorded = call_until_recorded(&shop, always).await;
    let waiting = deferred(shop.redrive.call(pay(3).policy(calling("owned_refund", slow()))).await);
    shop.redrive.fail(waiting).await.unwrap();
    _ = shop.redrive.call(pay(4).policy(calling("refund", once))).await.unwrap_err(); // nobody here handles it
    let all = async {
        loop {
            let mut told = db.store.list(&Default::default(), 10).await.unwrap();
            told.retain(|task| task.method.ends_with("refund")); // an `always` call may return before its task has left
            if told.len() == 4 {
                break told;
            }
            moment().await;
        }
    };
    let Ok(told) = tokio::time::timeout(Duration::from_secs(60), all).await else {
        let tries: Vec<_> = std::iter::from_fn(|| shop.tries.try_recv().ok()).collect();
        panic!("not all callbacks were written; the second call gave {recorded:?}, tries were {tries:#?}");
    };
    let (owned, others): (Vec<_>, Vec<_>) = told.into_iter().partition(|task| task.method == "owned_refund");
    assert_eq!(owned.len(), 3);
    for task in &owned {
        let policy = &task.policy;
        assert_eq!((policy.max_attempts, policy.max_crashes, task.priority), (Some(3), 9, 5));
        assert_eq!(policy.timeout, Some(Duration::from_secs(7)));
    }
    assert_eq!(others[0].policy.max_attempts, Some(2));
    shop.close().await;
}

async fn every_final_failure_calls_back(db: Db) {
    let (shop, mut called) = open(&db, vec![Answer::Timeout; 4]).await;
    let slow = || calling_back(slow());
    let ids = [1, 2, 3].map(|order| shop.redrive.call(pay(order).policy(slow())));
    let [failed, cancelled, rejected] =
        futures_util::future::join_all(ids).await.try_into().map(|all: [_; 3]| all.map(deferred)).unwrap();
    shop.redrive.fail(failed).await.unwrap();
    shop.redrive.wake();
    assert_eq!(failure(&mut called).await.reason, GivenUp::FailedByHand);
    shop.redrive.cancel(cancelled).await.unwrap();
    shop.redrive.wake();
    assert_eq!(failure(&mut called).await.reason, GivenUp::Cancelled);
    let soon = db.store.now().await.unwrap() + Duration::from_secs(60);
    let expiring = Policy { deadline: Some(soon), ..slow() }; // the next try would come too late
    _ = shop.redrive.call(pay(4).policy(expiring)).await.unwrap_err();
    assert_eq!(failure(&mut called).await.reason, GivenUp::Expired);
    shop.answer(Answer::Declined);
    shop.redrive.retry_now(rejected, None).await.unwrap();
    assert_eq!(failure(&mut called).await.reason, GivenUp::Rejected);
    shop.close().await;
}

async fn a_first_try_that_is_rejected_does_not_call_back(db: Db) {
    let (shop, mut called) = open(&db, vec![Answer::Declined; 2]).await;
    for persist in [Persist::RetryOnly, Persist::OnFailure] {
        _ = shop.redrive.call(pay(1).persist(persist).policy(calling_back(slow()))).await.unwrap_err();
    }
    shop.close().await;
    assert!(called.try_recv().is_err());
    assert_eq!(db.count("retry_task").await, 0);
}

async fn a_failure_by_a_process_without_the_code_calls_back(db: Db) {
    let (shop, mut called) = open(&db, [Answer::Timeout]).await;
    let id = deferred(shop.redrive.call(pay(1).policy(calling_back(slow()))).await);
    let other = db.another().await;
    other.fail(id, other.now().await.unwrap()).await.unwrap();
    assert_eq!(failure(&mut called).await.reason, GivenUp::FailedByHand);
    shop.close().await;
}

async fn a_task_that_is_cancelled_while_it_runs_calls_back(db: Db) {
    let new = NewTask::new("m", &1).unwrap().policy(calling_back(Policy::default()));
    let (task, _) = claimed(&db.store, new).await;
    db.store.cancel(task.id, NOW).await.unwrap();
    end(&db.store, &task, timeout(), NOW).await;
    let waiting = db.store.list(&Default::default(), 10).await.unwrap();
    assert_eq!(waiting.iter().map(|task| &*task.method).collect::<Vec<_>>(), ["refund"]);
    assert!(waiting[0].params.contains(r#""reason":"cancelled""#), "{}", waiting[0].params);
}

async fn a_success_is_kept_if_asked(db: Db) {
    let (shop, _) = open(&db, [Answer::Timeout]).await;
    let keep = |order| pay(order).policy(Policy { keep: true, ..quick(Policy::default()) });
    deferred(shop.redrive.call(keep(1)).await);
    shop.redrive.call(keep(2)).await.unwrap();
    let kept = loop {
        let kept = db.store.archive(&Default::default(), 10).await.unwrap();
        if kept.len() == 2 {
            break kept;
        }
        moment().await;
    };
    for entry in kept {
        assert_eq!((entry.ended_as, entry.result.as_deref()), (EndedAs::Done, Some(r#"{"code":200}"#)));
    }
    shop.close().await;
}
