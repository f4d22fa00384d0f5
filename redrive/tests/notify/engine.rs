//! From a handler that fails to the mail, by an engine.

use std::time::Duration;

use redrive::{Context, Engine, EngineConfig, Notify, Policy, Verdict};

use crate::harness::{Db, new, stores};
use crate::sink::{Sink, header};

stores!(an_engine_tells_people, an_engine_without_channels_leaves_notices_to_others);

fn builder(db: &Db) -> redrive::Builder {
    let mut config = EngineConfig::default();
    config.scan_interval = Duration::from_millis(100);
    Engine::builder(db.store.clone())
        .config(config)
        .register("m", async |_: Context<'static>, _: u64| Err::<(), _>(Verdict::from(std::fmt::Error)))
}

fn once() -> Policy {
    Policy { max_attempts: Some(1), notify: Some(Notify::Failures(1)), ..Policy::default() }
}

async fn an_engine_tells_people(db: Db) {
    let mut sink = Sink::start().await;
    let engine = builder(&db).notify(sink.config()).start().await.unwrap();
    engine.enqueue(new(1).policy(once())).await.unwrap();
    let mail = sink.next_mail().await;
    assert_eq!(header(&mail, "Subject").as_deref(), Some("[redrive] 1 task keeps failing: m (1)"));
    engine.stop().await;
    assert_eq!((sink.mails().len(), db.count("redrive_notice").await, db.count("retry_dead").await), (1, 0, 1));
}

async fn an_engine_without_channels_leaves_notices_to_others(db: Db) {
    let engine = builder(&db).start().await.unwrap();
    engine.enqueue(new(1).policy(once())).await.unwrap();
    while db.count("retry_dead").await == 0 {
        tokio::task::yield_now().await;
    }
    engine.stop().await;
    assert_eq!(db.count("redrive_notice").await, 1);
    let mut sink = Sink::start().await;
    let engine = builder(&db).notify(sink.config()).start().await.unwrap();
    sink.next_mail().await;
    engine.stop().await;
    assert_eq!(db.count("redrive_notice").await, 0);
}
