//! What may run at once, how fast, and what people hold back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::store::AuditFilter;
use redrive::{Context, Engine, EngineConfig, MethodOptions, NewTask, Status, Verdict};
use tokio::sync::{Semaphore, mpsc};

use crate::harness::{Db, moment, new, stores_and_months};

stores_and_months!(
    a_business_id_has_no_more_at_once_than_its_limit,
    a_crowd_of_one_business_id_does_not_delay_another,
    a_method_starts_no_faster_than_its_rate,
    a_paused_method_waits_and_goes_on_when_resumed,
    a_pause_is_noted_with_who_did_it,
    a_limit_by_business_that_people_set_holds_from_the_next_start_on,
    what_is_set_holds_on_all_nodes_until_it_is_taken_back,
    what_was_read_before_a_field_was_set_does_not_undo_it,
    limits_that_let_nothing_run_are_refused,
);

fn config() -> EngineConfig {
    let mut config = EngineConfig::default();
    config.scan_interval = Duration::from_millis(100);
    config.sweep_interval = Duration::from_millis(500);
    config.beat_interval = Duration::from_millis(100);
    config
}

async fn started<F, Fut>(db: &Db, options: MethodOptions, f: F) -> Engine
where
    F: Fn(Context<'static>, u64) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), Verdict>> + Send + 'static,
{
    let engine = Engine::builder(db.another().await).config(config()).register_with("m", options, f);
    engine.start().await.unwrap()
}

fn of(business: &str, n: u64) -> NewTask {
    new(n).no_key().business("order", business)
}

async fn a_business_id_has_no_more_at_once_than_its_limit(db: Db) {
    let running: Arc<Mutex<HashMap<String, (u32, u32)>>> = Arc::default();
    let (called, mut calls) = mpsc::unbounded_channel();
    let seen = running.clone();
    let handler = move |cx: Context<'static>, n: u64| {
        let (seen, called) = (seen.clone(), called.clone());
        async move {
            let business = cx.task().unwrap().business.clone().unwrap().id;
            {
                let mut seen = seen.lock().unwrap();
                let (now, most) = seen.entry(business.clone()).or_default();
                *now += 1;
                *most = (*most).max(*now);
            }
            tokio::task::yield_now().await;
            seen.lock().unwrap().get_mut(&business).unwrap().0 -= 1;
            _ = called.send(n);
            Ok(())
        }
    };
    let engine = started(&db, MethodOptions::default().per_business(2), handler).await;
    let tasks = (0..120).map(|n| of(["a", "b", "c"][n as usize % 3], n));
    engine.enqueue_many(tasks).await.unwrap();
    for _ in 0..120 {
        calls.recv().await.unwrap();
    }
    engine.stop().await;
    let most: Vec<u32> = running.lock().unwrap().values().map(|(_, most)| *most).collect();
    assert!(most.len() == 3 && most.iter().all(|most| *most <= 2), "{most:?}");
    assert_eq!(db.count("retry_task").await, 0);
}

/// Far more of one id than a scan brings, none of which ends; and one of another id behind them, in the same shard.
async fn a_crowd_of_one_business_id_does_not_delay_another(db: Db) {
    let (called, mut calls) = mpsc::unbounded_channel();
    let gate = Arc::new(Semaphore::new(0));
    let wait = gate.clone();
    let handler = move |cx: Context<'static>, n: u64| {
        let (called, wait) = (called.clone(), wait.clone());
        async move {
            if cx.task().unwrap().business.as_ref().is_some_and(|b| b.id == "crowd") {
                _ = wait.acquire().await;
            }
            _ = called.send(n);
            Ok(())
        }
    };
    let long_ago = db.store.now().await.unwrap() - Duration::from_secs(60);
    let ids = db.store.insert((0..1_500).map(|n| of("crowd", n)).collect(), long_ago).await.unwrap();
    let shard = ids[0].id.shard();
    let mut other = None;
    for name in 0..10_000 {
        let task = of(&name.to_string(), 9_999);
        let id = db.store.insert(vec![task], long_ago + Duration::from_secs(30)).await.unwrap()[0].id;
        if id.shard() == shard {
            other = Some(id);
            break;
        }
        db.store.cancel(id, long_ago).await.unwrap();
    }
    assert!(other.is_some());
    let engine = started(&db, MethodOptions::default().per_business(1), handler).await;
    assert_eq!(calls.recv().await, Some(9_999));
    gate.close(); // and now the crowd
    for _ in 0..150 {
        calls.recv().await.unwrap(); // one after the other: all of them would take long
    }
    engine.stop().await;
    assert!(db.count("retry_task").await <= 1_350);
}

async fn a_method_starts_no_faster_than_its_rate(db: Db) {
    let (called, mut calls) = mpsc::unbounded_channel();
    let handler = move |_: Context, n: u64| {
        _ = called.send(n);
        std::future::ready(Ok(()))
    };
    let started_at = db.store.now().await.unwrap();
    let engine = started(&db, MethodOptions::default().rate(20, Duration::from_millis(500)), handler).await;
    engine.enqueue_many((0..60).map(new)).await.unwrap();
    for _ in 0..60 {
        calls.recv().await.unwrap();
    }
    let took = db.store.now().await.unwrap().since(started_at);
    // 60 at 40 a second, less what the bucket holds at the most.
    assert!(took >= Duration::from_millis(950), "{took:?}");
    engine.stop().await;
}

async fn a_paused_method_waits_and_goes_on_when_resumed(db: Db) {
    let (called, mut calls) = mpsc::unbounded_channel();
    let handler = move |_: Context, n: u64| {
        _ = called.send(n);
        std::future::ready(Ok(()))
    };
    let engine = started(&db, MethodOptions::default(), handler).await;
    assert!(engine.pause("m", Some("ada")).await.unwrap() && !engine.pause("m", Some("ada")).await.unwrap());
    let id = engine.enqueue(new(1)).await.unwrap().id;
    engine.enqueue(NewTask::new("other", &2).unwrap()).await.unwrap();
    assert_eq!(engine.get(id).await.unwrap().unwrap().status, Status::Pending);
    assert!(calls.try_recv().is_err());
    // By another process.
    db.store.resume("m", Some("bob"), db.store.now().await.unwrap()).await.unwrap();
    assert_eq!(calls.recv().await, Some(1));
    engine.stop().await;
}

async fn a_pause_is_noted_with_who_did_it(db: Db) {
    let now = db.store.now().await.unwrap();
    db.store.pause("m", Some("ada"), now).await.unwrap();
    let paused = db.store.paused().await.unwrap();
    assert_eq!((paused.len(), &*paused[0].method, paused[0].by.as_deref()), (1, "m", Some("ada")));
    assert!(db.store.resume("m", None, now).await.unwrap() && !db.store.resume("m", None, now).await.unwrap());
    assert!(db.store.paused().await.unwrap().is_empty());
    assert_eq!(db.count("redrive_audit").await, 2, "what changed nothing is not noted");
    db.store.insert((0..5).map(new).collect(), now).await.unwrap();
    let depths = db.store.depths().await.unwrap();
    assert_eq!((depths.len(), &*depths[0].method, depths[0].depth), (1, "m", 5));
    assert_eq!(depths[0].oldest_due, Some(now));
}

async fn a_limit_by_business_that_people_set_holds_from_the_next_start_on(db: Db) {
    let ok = |_: Context, _: u64| std::future::ready(Ok(()));
    let engine = started(&db, MethodOptions::default(), ok).await;
    let waits = engine.set("methods.m.per_business", Some(1.into()), "ada").await.unwrap();
    assert_eq!(waits, ["methods.m.per_business"]);
    let again = engine.set("methods.m.per_business", Some(1.into()), "ada").await.unwrap();
    assert_eq!(again, waits, "also for who sets what is set already");
    engine.stop().await;
    let engine = started(&db, MethodOptions::default(), ok).await;
    let waits = engine.set("methods.m.per_business", Some(2.into()), "ada").await.unwrap();
    assert_eq!(waits, [""; 0], "there is a limit by now, and it can be another one");
    engine.stop().await;
}

async fn what_is_set_holds_on_all_nodes_until_it_is_taken_back(db: Db) {
    let attempts = |engine: &Engine| engine.defaults().policy.max_attempts;
    let ok = async |_: Context, _: u64| Ok(());
    let one = started(&db, MethodOptions::default(), ok).await;
    let other = started(&db, MethodOptions::default(), ok).await;
    one.set("defaults.max_attempts", Some(5.into()), "ada").await.unwrap();
    assert_eq!(attempts(&one), Some(5));
    while attempts(&other) != Some(5) {
        moment().await;
    }
    let late = started(&db, MethodOptions::default(), ok).await;
    assert_eq!(attempts(&late), Some(5), "also on one that starts afterwards");
    for (path, value) in [("defaults.max_attempts", 0.into()), ("engine.lease", "1m".into())] {
        one.set(path, Some(value), "ada").await.unwrap_err();
    }
    let set = db.store.set_fields().await.unwrap();
    assert_eq!((set.len(), &*set[0].path, set[0].by.as_deref()), (1, "defaults.max_attempts", Some("ada")));
    other.set("defaults.max_attempts", None, "bob").await.unwrap();
    while attempts(&one) != Some(16) {
        moment().await;
    }
    let audit =
        db.store.audits(&AuditFilter { action: Some("settings.".into()), ..AuditFilter::default() }, 10).await.unwrap();
    let said: Vec<_> = audit.iter().map(|a| (&*a.entry.who, a.entry.before.clone(), a.entry.after.clone())).collect();
    assert_eq!(said, [("bob", Some(5.into()), None), ("ada", None, Some(5.into()))]);
    for engine in [one, other, late] {
        engine.stop().await;
    }
}

async fn what_was_read_before_a_field_was_set_does_not_undo_it(db: Db) {
    let engine = started(&db, MethodOptions::default(), async |_: Context, _: u64| Ok(())).await;
    let looks: Vec<_> = (0..4)
        .map(|_| {
            let engine = engine.clone();
            tokio::spawn(async move {
                while let Ok(()) = engine.follow_people().await {
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for n in 1..=100 {
        engine.set("defaults.max_attempts", Some(n.into()), "ada").await.unwrap();
        for _ in 0..20 {
            assert_eq!(engine.defaults().policy.max_attempts, Some(n));
            tokio::task::yield_now().await;
        }
    }
    looks.iter().for_each(tokio::task::JoinHandle::abort);
    engine.stop().await;
}

async fn limits_that_let_nothing_run_are_refused(db: Db) {
    let ok = async |_: Context, _: u64| Ok(());
    for options in [
        MethodOptions::default().concurrency(0),
        MethodOptions::default().per_business(0),
        MethodOptions::default().rate(0, Duration::from_secs(1)),
        MethodOptions::default().rate(1, Duration::ZERO),
        MethodOptions::default().rate(1, Duration::MAX),
    ] {
        let engine = Engine::builder(db.store.clone()).register_with("m", options, ok).start().await;
        assert!(engine.unwrap_err().to_string().contains("m"));
    }
}
