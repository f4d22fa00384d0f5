//! Targets that ask for a slower pace: no attempt is used up, and their lane waits. On real nodes.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::store::DeadFilter;
use redrive::{
    Backoff, CallError, Cause, Clock, Context, DeadReason, Engine, EngineConfig, ErrorKind, Jitter, NewTask, Persist,
    Policy, Retryable, Timestamp, Verdict,
};

use crate::harness::{Db, moment, new, stores};

stores!(
    a_lane_is_left_alone_for_the_time_that_its_target_names,
    a_backlog_goes_at_the_pace_that_its_target_allows,
    what_is_slowed_down_for_too_long_is_a_dead_letter_that_says_so,
    callers_are_slowed_down_too,
    what_is_tried_in_memory_waits_there,
);

const SECOND: Duration = Duration::from_secs(1);

fn now() -> Timestamp {
    Clock::system().now()
}

fn config() -> EngineConfig {
    let mut config = EngineConfig::default();
    config.scan_interval = Duration::from_millis(100);
    config
}

/// One attempt, and a short wait for a target that names none.
fn once() -> Policy {
    let backoff = Backoff::fixed(Duration::from_millis(200));
    Policy { max_attempts: Some(1), backoff, jitter: Jitter::None, ..Policy::default() }
}

#[derive(Debug, thiserror::Error)]
#[error("too many requests")]
struct TooMany;
impl ErrorKind for TooMany {
    fn kind(&self) -> redrive::Kind {
        redrive::Kind::http(429)
    }
}

/// A target that takes so many calls in each fifth of a second.
#[derive(Clone, Default)]
struct Target(Arc<Mutex<Counted>>);

#[derive(Default)]
struct Counted {
    window: u128,
    taken: u32,
    all: u32,
    refused: u32,
}

impl Target {
    fn takes(&self, began: Timestamp, most: u32) -> bool {
        let (mut counted, window) = (self.0.lock().unwrap(), now().since(began).as_millis() / 200);
        if counted.window != window {
            (counted.window, counted.taken) = (window, 0);
        }
        let takes = counted.taken < most;
        counted.taken += u32::from(takes);
        counted.all += u32::from(takes);
        counted.refused += u32::from(!takes);
        takes
    }
}

async fn a_lane_is_left_alone_for_the_time_that_its_target_names(db: Db) {
    let (began, calls) = (now(), Arc::new(Mutex::new(Vec::new())));
    let seen = calls.clone();
    let handler = move |cx: Context, _: u64| {
        let mut seen = seen.lock().unwrap();
        seen.push((now().since(began), cx.attempt()));
        let first = seen.len() == 1;
        std::future::ready(if first { Err(Verdict::slow_down(&TooMany, Some(2 * SECOND))) } else { Ok(()) })
    };
    let other = async |_: Context, _: u64| Ok(());
    let builder = Engine::builder(db.another().await).config(config()).register("m", handler);
    let engine = builder.register("other", other).start().await.unwrap();
    let first = engine.enqueue(new(0).policy(once())).await.unwrap().id;
    while db.store.get(first).await.unwrap().unwrap().postponements == 0 {
        moment().await;
    }
    for n in 1..20 {
        engine.enqueue(new(n).policy(once())).await.unwrap();
    }
    engine.enqueue(NewTask::new("other", &1).unwrap()).await.unwrap();
    while db.count("retry_task").await > 20 {
        moment().await;
    }
    let first = calls.lock().unwrap()[0].0;
    assert!(now().since(began) < first + 2 * SECOND, "other lanes go on");
    while db.count("retry_task").await > 0 {
        moment().await;
    }
    engine.stop().await;
    let calls = calls.lock().unwrap().clone();
    let gap = calls[1].0 - calls[0].0;
    assert!(gap >= 2 * SECOND && gap < 4 * SECOND, "{gap:?}");
    assert!(calls.len() == 21 && calls.iter().all(|(_, attempt)| *attempt == 1), "{calls:?}");
    assert_eq!(db.count("retry_dead").await, 0);
}

/// Two nodes, a hundred calls a second, and tasks that have one attempt each.
async fn a_backlog_goes_at_the_pace_that_its_target_allows(db: Db) {
    let (began, target) = (now(), Target::default());
    let mut nodes = Vec::new();
    for _ in 0..2 {
        let target = target.clone();
        let handler = move |_: Context, _: u64| {
            let takes = target.takes(began, 20);
            std::future::ready(if takes { Ok(()) } else { Err(Verdict::of(&TooMany)) })
        };
        let builder = Engine::builder(db.another().await).config(config()).register("m", handler);
        nodes.push(builder.start().await.unwrap());
    }
    let tasks = (0..300).map(|n| new(n).policy(once()));
    nodes[0].enqueue_many(tasks.collect::<Vec<_>>()).await.unwrap();
    while db.count("retry_task").await > 0 {
        assert!(now().since(began) < 180 * SECOND, "{} left", db.count("retry_task").await);
        moment().await;
    }
    for node in nodes {
        node.stop().await;
    }
    assert_eq!(db.count("retry_dead").await, 0);
    let counted = target.0.lock().unwrap();
    assert_eq!(counted.all, 300);
    assert!(counted.refused > 0 && counted.refused < 300, "{} refused", counted.refused);
}

async fn what_is_slowed_down_for_too_long_is_a_dead_letter_that_says_so(db: Db) {
    let handler = |_: Context, _: u64| std::future::ready(Err(Verdict::of(&TooMany)));
    let engine = Engine::builder(db.another().await).config(config()).register("m", handler).start().await.unwrap();
    let policy = Policy { max_postponed: 6 * SECOND, backoff: Backoff::fixed(SECOND), ..once() };
    let id = engine.enqueue(new(1).policy(policy)).await.unwrap().id;
    let letter = loop {
        if let Some(letter) = db.store.get_dead(id).await.unwrap() {
            break letter;
        }
        moment().await;
    };
    engine.stop().await;
    assert_eq!((letter.reason, letter.task.attempts), (DeadReason::Postponed, 0));
    let history = &letter.task.history;
    assert_eq!(
        history.iter().map(|past| past.n).collect::<Vec<_>>(),
        [1, 1],
        "those before the last are noted together"
    );
    let (waited, last) = (&history[0], &history[1]);
    assert!((2..=6).contains(&waited.times) && (2 * SECOND..=6 * SECOND).contains(&waited.waited), "{waited:?}");
    assert_eq!((last.times, last.waited), (1, Duration::ZERO));
    assert_eq!(letter.task.last_error.unwrap().kind.as_str(), "http.429");
    let found = DeadFilter { reason: Some(DeadReason::Postponed), ..DeadFilter::default() };
    assert_eq!(db.store.dead(&found, 10).await.unwrap().len(), 1);
}

/// A call whose target asks to be left alone: for a second where it is tried in memory, else for so long that no write outlasts it.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Pay {
    n: u64,
    persist: u8,
}

impl Retryable for Pay {
    const METHOD: &'static str = "pay";
    type Output = ();
    type Error = TooMany;
    async fn execute(&self, cx: &Context<'_>) -> Result<(), TooMany> {
        cx.retry_after(if self.persist == 2 { SECOND } else { 60 * SECOND });
        let left = cx.state::<AtomicU32>().unwrap().fetch_sub(1, Ordering::SeqCst);
        if left == 1 { Ok(()) } else { Err(TooMany) }
    }
    fn classify(&self, error: &TooMany) -> Verdict {
        Verdict::of(error)
    }
    fn persist(&self) -> Option<Persist> {
        [Persist::RetryOnly, Persist::Always, Persist::Never].get(usize::from(self.persist)).copied()
    }
    fn policy(&self, _: Policy) -> Policy {
        once()
    }
}

async fn payer(db: &Db, calls: u32) -> Engine {
    let builder = Engine::builder(db.another().await).config(config()).state(AtomicU32::new(calls));
    builder.handler::<Pay>().start().await.unwrap()
}

async fn callers_are_slowed_down_too(db: Db) {
    for persist in [0, 1] {
        let engine = payer(&db, u32::MAX).await;
        let first = engine.call(Pay { n: 1, persist }).await.unwrap_err();
        let CallError::Deferred { task_id: first, cause: Some(Cause::Error(TooMany)), .. } = first else {
            panic!("{first}")
        };
        let second = engine.call(Pay { n: 2, persist }).await.unwrap_err();
        let CallError::Deferred { task_id: second, cause: Some(Cause::LeftAlone(_)), .. } = second else {
            panic!("{second}")
        };
        engine.stop().await;
        let task = db.store.get(second).await.unwrap().unwrap();
        assert_eq!((task.attempts, task.postponements, task.history.len()), (0, 0, 0), "it was not tried");
        let task = db.store.get(first).await.unwrap().unwrap();
        assert_eq!((task.attempts, task.postponements, task.waited()), (0, 1, 60 * SECOND));
        assert_eq!(db.count("retry_task").await, 2);
        // The next engine is not to run them.
        db.sql("DELETE FROM retry_task").await;
        db.sql("DELETE FROM redrive_key").await;
    }
}

async fn what_is_tried_in_memory_waits_there(db: Db) {
    let began = now();
    let engine = payer(&db, 3).await;
    engine.call(Pay { n: 3, persist: 2 }).await.unwrap();
    assert!(now().since(began) >= 2 * SECOND, "it has one attempt, and was asked twice to wait");
    assert_eq!(db.count("retry_task").await, 0);
    engine.stop().await;
}
