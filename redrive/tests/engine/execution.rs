//! What becomes of tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redrive::store::{Cancelled, EndedAs};
use redrive::{
    Backoff, Context, DeadReason, Engine, EngineConfig, Jitter, MethodOptions, NewTask, Policy, Status, Verdict,
};
use tokio::sync::mpsc;

use crate::harness::{Db, moment, new, stores_and_months};

stores_and_months!(
    a_task_runs_once_and_is_gone,
    a_failing_task_is_tried_again_until_it_succeeds,
    a_task_that_keeps_failing_is_dead_with_its_error,
    a_panic_and_a_timeout_are_failed_attempts,
    a_destructor_that_panics_is_a_failed_attempt,
    params_that_cannot_be_read_are_dead_at_once,
    handlers_may_snooze_cancel_and_give_up,
    a_thousand_tasks_from_many_callers_run_once_each,
    a_backlog_deeper_than_a_scan_runs_once_each,
    timers_closer_than_a_scan_reads_run_at_their_time,
    what_is_due_again_in_a_moment_waits_for_no_scan,
    tasks_enqueued_by_another_process_are_found,
    a_task_runs_at_its_time_and_not_before,
    a_running_task_is_cancelled_through_its_context,
    a_cancel_by_another_process_reaches_the_handler,
    a_stop_waits_for_what_runs,
    a_stop_gives_back_what_does_not_end_in_time,
    a_method_has_no_more_at_once_than_its_limit,
    a_million_of_one_method_do_not_delay_another,
    a_task_in_a_transaction_runs_when_it_commits,
    an_engine_that_has_stopped_takes_nothing,
    a_method_that_nobody_handles_waits,
    one_row_that_cannot_be_decoded_stops_no_other,
);

fn config() -> EngineConfig {
    let mut config = EngineConfig::default();
    config.scan_interval = Duration::from_millis(100);
    config.sweep_interval = Duration::from_millis(500);
    config.grace = Duration::from_secs(10);
    config
}

fn quick() -> Policy {
    Policy { backoff: Backoff::fixed(Duration::from_millis(5)), jitter: Jitter::None, ..Policy::default() }
}

/// An engine whose handler of `m` does what `f` says; its calls arrive in the channel.
async fn engine<F, Fut>(db: &Db, f: F) -> (Engine, mpsc::UnboundedReceiver<u64>)
where
    F: Fn(Context<'static>, u64) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), Verdict>> + Send + 'static,
{
    let (called, calls) = mpsc::unbounded_channel();
    let handler = move |cx: Context<'static>, n: u64| {
        _ = called.send(n);
        f(cx, n)
    };
    (Engine::builder(db.store.clone()).config(config()).register("m", handler).start().await.unwrap(), calls)
}

async fn ok(_: Context<'_>, _: u64) -> Result<(), Verdict> {
    Ok(())
}

/// Waits until the engine has written all outcomes.
async fn settled(engine: &Engine) {
    while engine.stats().running > 0 {
        moment().await;
    }
}

async fn a_task_runs_once_and_is_gone(db: Db) {
    let (engine, mut calls) = engine(&db, ok).await;
    let task = engine.enqueue(new(7)).await.unwrap();
    assert_eq!(calls.recv().await, Some(7));
    settled(&engine).await;
    assert_eq!(engine.get(task.id).await.unwrap(), None);
    engine.stop().await;
    assert!(calls.try_recv().is_err(), "once");
    assert_eq!((db.count("retry_task").await, db.count("redrive_key").await), (0, 0));
}

async fn a_failing_task_is_tried_again_until_it_succeeds(db: Db) {
    let handler = async |cx: Context, _| if cx.attempt() < 4 { Err(Verdict::from(std::fmt::Error)) } else { Ok(()) };
    let (engine, mut calls) = engine(&db, handler).await;
    engine.enqueue(new(7).policy(quick())).await.unwrap();
    for _ in 0..4 {
        assert_eq!(calls.recv().await, Some(7));
    }
    settled(&engine).await;
    engine.stop().await;
    assert_eq!((db.count("retry_task").await, db.count("retry_dead").await), (0, 0));
}

async fn a_task_that_keeps_failing_is_dead_with_its_error(db: Db) {
    let (engine, mut calls) = engine(&db, async |_, _| Err("x".parse::<i32>().unwrap_err().into())).await;
    let policy = Policy { max_attempts: Some(3), ..quick() };
    let id = engine.enqueue(new(7).policy(policy)).await.unwrap().id;
    for _ in 0..3 {
        calls.recv().await.unwrap();
    }
    settled(&engine).await;
    engine.stop().await;
    let letter = db.store.get_dead(id).await.unwrap().unwrap();
    assert_eq!((letter.reason, letter.task.attempts, letter.task.history.len()), (DeadReason::Exhausted, 3, 3));
    assert!(letter.task.last_error.unwrap().message.contains("invalid digit"));
}

async fn a_panic_and_a_timeout_are_failed_attempts(db: Db) {
    let handler = async |cx: Context, _| match cx.attempt() {
        1 => panic!("oh no"),
        2 => std::future::pending().await,
        _ => Err(Verdict::fatal("enough")),
    };
    let (engine, mut calls) = engine(&db, handler).await;
    let policy = Policy { timeout: Some(Duration::from_millis(50)), ..quick() };
    let id = engine.enqueue(new(7).policy(policy)).await.unwrap().id;
    for _ in 0..3 {
        calls.recv().await.unwrap();
    }
    settled(&engine).await;
    engine.stop().await;
    let letter = db.store.get_dead(id).await.unwrap().unwrap();
    let kinds: Vec<_> = letter.task.history.iter().map(|a| a.kind.as_str().to_owned()).collect();
    assert_eq!((kinds, letter.reason), (vec!["panic".into(), "timeout".into(), "error".into()], DeadReason::Rejected));
    assert!(letter.task.history[0].message.contains("oh no"));
}

/// Panics when it is dropped.
struct Unfinished;

impl Drop for Unfinished {
    fn drop(&mut self) {
        panic!("not finished");
    }
}

/// What a handler leaves behind when its time is up is not in its hands any more.
async fn a_destructor_that_panics_is_a_failed_attempt(db: Db) {
    let handler = async |cx: Context, _| {
        if cx.attempt() == 1 {
            let _unfinished = Unfinished;
            let () = std::future::pending().await;
        }
        Ok(())
    };
    let (engine, mut calls) = engine(&db, handler).await;
    let policy = Policy { timeout: Some(Duration::from_millis(50)), keep: true, ..quick() };
    let id = engine.enqueue(new(7).policy(policy)).await.unwrap().id;
    for _ in 0..2 {
        calls.recv().await.unwrap();
    }
    settled(&engine).await;
    assert_eq!(engine.stats().running, 0);
    engine.stop().await;
    let kept = db.store.archive(&Default::default(), 10).await.unwrap();
    let history: Vec<_> = kept[0].task.history.iter().map(|attempt| attempt.kind.as_str()).collect();
    assert_eq!((kept[0].task.id, history), (id, vec!["panic"]));
}

async fn params_that_cannot_be_read_are_dead_at_once(db: Db) {
    let (engine, mut calls) = engine(&db, ok).await;
    let bad = NewTask::new("m", "4242 4242, not a number").unwrap();
    let id = engine.enqueue(bad).await.unwrap().id;
    while db.store.get_dead(id).await.unwrap().is_none() {
        moment().await;
    }
    engine.stop().await;
    let letter = db.store.get_dead(id).await.unwrap().unwrap();
    assert_eq!((letter.reason, letter.task.attempts), (DeadReason::Undecodable, 0));
    let said = letter.task.last_error.unwrap().message;
    assert!(said.starts_with("params cannot be read: expected ") && !said.contains("4242"), "{said}");
    assert!(calls.try_recv().is_err());
}

async fn handlers_may_snooze_cancel_and_give_up(db: Db) {
    let handler = async |cx: Context, n| match (n, cx.task().unwrap().postponements) {
        (1, 0..3) => Err(Verdict::Snooze(Duration::from_millis(5))),
        (2, _) => Err(Verdict::Cancel),
        (3, _) => Err(Verdict::fatal("no use")),
        _ => Ok(()),
    };
    let (engine, mut calls) = engine(&db, handler).await;
    let ids: Vec<_> = engine.enqueue_many(vec![new(1), new(2), new(3)]).await.unwrap().iter().map(|e| e.id).collect();
    for _ in 0..6 {
        calls.recv().await.unwrap();
    }
    settled(&engine).await;
    engine.stop().await;
    assert_eq!(db.count("retry_task").await, 0);
    assert_eq!(db.store.get_dead(ids[2]).await.unwrap().unwrap().reason, DeadReason::Rejected);
    let kept = db.store.archive(&Default::default(), 10).await.unwrap();
    assert_eq!(kept.iter().map(|a| (a.task.id, a.ended_as)).collect::<Vec<_>>(), [(ids[1], EndedAs::Cancelled)]);
}

async fn a_thousand_tasks_from_many_callers_run_once_each(db: Db) {
    let (engine, mut calls) = engine(&db, ok).await;
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..50 {
        let engine = engine.clone();
        callers.spawn(async move {
            for n in 0..20 {
                let new = new(caller * 20 + n);
                engine.enqueue(if n % 2 == 0 { new } else { new.no_key() }).await.unwrap();
            }
        });
    }
    callers.join_all().await;
    let mut seen = vec![0; 1_000];
    for _ in 0..1_000 {
        seen[calls.recv().await.unwrap() as usize] += 1;
    }
    settled(&engine).await;
    engine.stop().await;
    assert!(seen.iter().all(|n| *n == 1) && calls.try_recv().is_err());
    assert_eq!((db.count("retry_task").await, db.count("redrive_key").await), (0, 0));
}

/// More of each shard than a scan brings: they are claimed where they lie.
async fn a_backlog_deeper_than_a_scan_runs_once_each(db: Db) {
    let tasks = 12_000;
    let now = db.store.now().await.unwrap();
    for first in (0..tasks).step_by(2_000) {
        db.store.insert((first..first + 2_000).map(|n| new(n).no_key()).collect(), now).await.unwrap();
    }
    let (engine, mut calls) = engine(&db, ok).await;
    let mut seen = std::collections::HashSet::new();
    for _ in 0..tasks {
        assert!(seen.insert(calls.recv().await.unwrap()), "once");
    }
    settled(&engine).await;
    engine.stop().await;
    assert!(calls.try_recv().is_err());
    assert_eq!(db.count("retry_task").await, 0);
}

/// More of each shard within a scan interval than a scan brings: they are read ahead, not found when they are late.
async fn timers_closer_than_a_scan_reads_run_at_their_time(db: Db) {
    let tasks = 12_000;
    let now = db.store.now().await.unwrap();
    let due = |n: u64| now + Duration::from_secs(5) + Duration::from_micros(n * 100);
    for first in (0..tasks).step_by(2_000) {
        let batch = (first..first + 2_000).map(|n| new(n).no_key().at(due(n)));
        db.store.insert(batch.collect(), now).await.unwrap();
    }
    let (called, mut calls) = mpsc::unbounded_channel();
    let handler = move |cx: Context<'static>, n: u64| {
        _ = called.send(n);
        ok(cx, n)
    };
    let mut config = config();
    config.scan_interval = Duration::from_secs(3600); // a second scan would come too late
    config.sweep_interval = Duration::from_secs(3600);
    let engine = Engine::builder(db.store.clone()).config(config).register("m", handler).start().await.unwrap();
    for _ in 0..tasks {
        calls.recv().await.unwrap();
    }
    settled(&engine).await;
    engine.stop().await;
    assert_eq!(db.count("retry_task").await, 0);
}

async fn what_is_due_again_in_a_moment_waits_for_no_scan(db: Db) {
    let (called, mut calls) = mpsc::unbounded_channel();
    let tries = AtomicU32::new(0);
    let handler = move |_: Context<'static>, _: u64| {
        let n = tries.fetch_add(1, Ordering::SeqCst);
        _ = called.send(n);
        std::future::ready(if n < 40 { Err(Verdict::Snooze(Duration::from_millis(u64::from(n)))) } else { Ok(()) })
    };
    let mut config = config();
    config.scan_interval = Duration::from_secs(3600);
    config.sweep_interval = Duration::from_secs(3600);
    let engine = Engine::builder(db.store.clone()).config(config).register("m", handler).start().await.unwrap();
    engine.enqueue(new(1)).await.unwrap();
    let called = async { while calls.recv().await.unwrap() < 40 {} };
    tokio::time::timeout(Duration::from_secs(60), called).await.expect("it waits for a scan");
    settled(&engine).await;
    engine.stop().await;
    assert_eq!(db.count("retry_task").await, 0);
}

async fn tasks_enqueued_by_another_process_are_found(db: Db) {
    let (engine, mut calls) = engine(&db, ok).await;
    let other = db.another().await;
    let now = other.now().await.unwrap();
    other.insert((0..300).map(new).collect(), now).await.unwrap();
    for _ in 0..300 {
        calls.recv().await.unwrap();
    }
    settled(&engine).await;
    engine.stop().await;
    assert_eq!(db.count("retry_task").await, 0);
}

async fn a_task_runs_at_its_time_and_not_before(db: Db) {
    let (engine, mut calls) = engine(&db, ok).await;
    let now = db.store.now().await.unwrap();
    let due = now + Duration::from_millis(300);
    engine.enqueue(new(1).at(due)).await.unwrap();
    engine.enqueue(new(2).delay(Duration::from_secs(3600))).await.unwrap();
    assert_eq!(calls.recv().await, Some(1));
    assert!(db.store.now().await.unwrap() >= due);
    engine.stop().await;
    assert!(calls.try_recv().is_err());
    assert_eq!(db.count("retry_task").await, 1);
}

async fn a_running_task_is_cancelled_through_its_context(db: Db) {
    let handler = async |cx: Context, _| {
        cx.cancelled().await;
        Err(Verdict::from(std::fmt::Error))
    };
    let (engine, mut calls) = engine(&db, handler).await;
    let id = engine.enqueue(new(1)).await.unwrap().id;
    calls.recv().await.unwrap();
    assert_eq!(engine.cancel(id).await.unwrap(), Cancelled::Requested);
    settled(&engine).await;
    engine.stop().await;
    assert_eq!(db.store.archive(&Default::default(), 10).await.unwrap()[0].ended_as, EndedAs::Cancelled);
}

async fn a_cancel_by_another_process_reaches_the_handler(db: Db) {
    let handler = async |cx: Context, _| {
        cx.cancelled().await;
        Err(Verdict::from(std::fmt::Error))
    };
    let (engine, mut calls) = engine(&db, handler).await;
    let id = engine.enqueue(new(1)).await.unwrap().id;
    calls.recv().await.unwrap();
    assert_eq!(db.another().await.cancel(id, db.store.now().await.unwrap()).await.unwrap(), Cancelled::Requested);
    settled(&engine).await;
    engine.stop().await;
    assert_eq!(db.store.archive(&Default::default(), 10).await.unwrap()[0].ended_as, EndedAs::Cancelled);
}

async fn a_stop_waits_for_what_runs(db: Db) {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let waits = gate.clone();
    let handler = move |_, _| {
        let gate = waits.clone();
        async move {
            _ = gate.acquire().await;
            Ok(())
        }
    };
    let (engine, mut calls) = engine(&db, handler).await;
    engine.enqueue(new(1)).await.unwrap();
    calls.recv().await.unwrap();
    let stopping = tokio::spawn({
        let engine = engine.clone();
        async move { engine.stop().await }
    });
    gate.add_permits(1);
    stopping.await.unwrap();
    assert_eq!(db.count("retry_task").await, 0, "it ended, and that is written");
}

async fn a_stop_gives_back_what_does_not_end_in_time(db: Db) {
    let mut config = config();
    config.grace = Duration::from_millis(50);
    let handler = async |_cx: Context, _: u64| std::future::pending().await;
    let engine = Engine::builder(db.store.clone()).config(config).register("m", handler).start().await.unwrap();
    let id = engine.enqueue(new(1)).await.unwrap().id;
    while engine.stats().executing == 0 {
        moment().await;
    }
    engine.stop().await;
    let task = db.store.get(id).await.unwrap().unwrap();
    assert_eq!((task.status, task.attempts, task.crashes), (Status::Pending, 0, 0), "nothing was burnt");
}

async fn a_method_has_no_more_at_once_than_its_limit(db: Db) {
    let (now, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (at_once, highest) = (now.clone(), most.clone());
    let (called, mut calls) = mpsc::unbounded_channel();
    let handler = move |_: Context, n: u64| {
        let (now, most, called) = (at_once.clone(), highest.clone(), called.clone());
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            now.fetch_sub(1, Ordering::SeqCst);
            _ = called.send(n);
            Ok(())
        }
    };
    let options = MethodOptions::default().concurrency(3);
    let engine =
        Engine::builder(db.store.clone()).config(config()).register_with("m", options, handler).start().await.unwrap();
    engine.enqueue_many((0..100).map(new)).await.unwrap();
    for _ in 0..100 {
        calls.recv().await.unwrap();
    }
    settled(&engine).await;
    engine.stop().await;
    assert!((1..=3).contains(&most.load(Ordering::SeqCst)), "{most:?}");
}

/// Not a million here, but far more than there are slots, and none of them ever ends.
async fn a_million_of_one_method_do_not_delay_another(db: Db) {
    let mut config = config();
    config.concurrency = 10;
    config.grace = Duration::from_millis(10);
    let (called, mut calls) = mpsc::unbounded_channel();
    let handler = move |_: Context, n: u64| {
        _ = called.send(n);
        std::future::ready(Ok(()))
    };
    let slow = async |_cx: Context, _: u64| std::future::pending().await;
    let engine = Engine::builder(db.store.clone()).config(config);
    let engine = engine.register_with("slow", MethodOptions::default().concurrency(5), slow).register("m", handler);
    let now = db.store.now().await.unwrap();
    let backlog = (0..2_000u64).map(|n| NewTask::new("slow", &n).unwrap().no_key()).collect();
    db.store.insert(backlog, now - Duration::from_secs(60)).await.unwrap();
    db.store.insert(vec![new(1)], now).await.unwrap();
    let engine = engine.start().await.unwrap();
    assert_eq!(calls.recv().await, Some(1));
    engine.stop().await;
}

async fn a_task_in_a_transaction_runs_when_it_commits(db: Db) {
    let (engine, mut calls) = engine(&db, ok).await;
    let task = engine.transaction(async |tx| engine.enqueue_in(tx, new(5)).await).await.unwrap();
    assert!(!task.existed);
    assert_eq!(calls.recv().await, Some(5));
    let failed = engine.transaction(async |tx| {
        engine.enqueue_in(tx, new(6)).await?;
        Err::<(), _>(redrive::Error::invalid("order", "not in stock"))
    });
    assert!(failed.await.is_err());
    settled(&engine).await;
    engine.stop().await;
    assert!(calls.try_recv().is_err());
    assert_eq!(db.count("retry_task").await, 0);
}

async fn an_engine_that_has_stopped_takes_nothing(db: Db) {
    let (engine, _calls) = engine(&db, ok).await;
    engine.stop().await;
    let e = engine.enqueue(new(1)).await.unwrap_err();
    assert!(matches!(e, redrive::Error::Unavailable { .. }) && e.is_transient(), "{e:?}");
    assert_eq!(e.to_string(), "cannot enqueue on this engine: it has stopped; nothing was written");
    assert_eq!(db.count("retry_task").await, 0);
}

async fn a_method_that_nobody_handles_waits(db: Db) {
    let (engine, mut calls) = engine(&db, ok).await;
    let id = engine.enqueue(NewTask::new("unknown", &1).unwrap()).await.unwrap().id;
    engine.enqueue(new(1)).await.unwrap();
    calls.recv().await.unwrap();
    settled(&engine).await;
    engine.stop().await;
    assert_eq!(db.store.get(id).await.unwrap().unwrap().status, Status::Pending);
}

/// Fifty tasks are due, and somebody has set a limit of one of them to a value that redrive never writes.
async fn one_row_that_cannot_be_decoded_stops_no_other(db: Db) {
    let answers = db.store.insert((0..50).map(new).collect(), db.store.now().await.unwrap()).await.unwrap();
    db.sql(&format!("UPDATE retry_task SET max_attempts = -1 WHERE id = {}", answers[7].id.as_i64())).await;
    let (engine, mut calls) = engine(&db, ok).await;
    for _ in 0..49 {
        let called = tokio::time::timeout(Duration::from_secs(60), calls.recv()).await.expect("49 tasks run");
        assert_ne!(called, Some(7));
    }
    let deadline = tokio::time::timeout(Duration::from_secs(60), async {
        while db.count("retry_task").await > 0 {
            moment().await;
        }
    });
    deadline.await.expect("no row is left");
    engine.stop().await;
    assert_eq!(db.store.get_dead(answers[7].id).await.unwrap().unwrap().reason, DeadReason::Undecodable);
    assert!(calls.try_recv().is_err(), "once each");
}
