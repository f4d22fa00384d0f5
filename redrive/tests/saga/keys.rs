//! Redrive's own trouble uses up no attempt: keys that are not everywhere yet, journals that cannot be read.

use std::time::Duration;

use redrive::saga::{Definition, SagaState, StepDef};
use redrive::{Backoff, Keyring, MethodOptions, Policy, Store};
use serde_json::json;

use crate::harness::{Db, moment, options, stores};
use crate::script::{Say, World, quick, saga, settled, step};

stores!(
    a_key_is_rotated_in_two_steps,
    a_step_waits_for_the_key_of_its_journal,
    a_step_that_may_be_tried_once_waits_for_its_journal,
);

/// Encrypts all with the first of these keys, and reads what any of them has encrypted.
async fn store_with(db: &Db, keys: &[u8]) -> Store {
    let id = |key: u8| format!("key-{key}");
    let mut ring = Keyring::new(id(keys[0]), [keys[0]; 32]).unwrap();
    for key in &keys[1..] {
        ring = ring.with(id(*key), [*key; 32]).unwrap();
    }
    let mut options = options();
    options.keyring = Some(ring.encrypt_all());
    Store::open_with(&db.url, options).await.unwrap()
}

fn on(method: &str, name: &str, after: &[&str]) -> StepDef {
    let once = Policy { max_attempts: Some(1), ..quick() };
    StepDef { method: Some(method.into()), policy: Some(once), ..step(name, after) }
}

/// Back and forth between two nodes. Each step may be tried once.
fn back_and_forth() -> Definition {
    saga([on("a", "one", &[]), on("b", "two", &["one"]), on("a", "three", &["two"]), on("b", "four", &["three"])])
}

async fn a_key_is_rotated_in_two_steps(db: Db) {
    let world = World::default();
    // At first, while the new key is added everywhere, while it is made current everywhere, and when the old one is taken away.
    let stages: [(&[u8], &[u8]); 6] =
        [(&[1], &[1]), (&[1, 2], &[1]), (&[1, 2], &[1, 2]), (&[2, 1], &[1, 2]), (&[2, 1], &[2, 1]), (&[2], &[2])];
    for (n, (left, right)) in stages.into_iter().enumerate() {
        let a = world.engine_of(&store_with(&db, left).await, &["a"]).await;
        let b = world.engine_of(&store_with(&db, right).await, &["b"]).await;
        for (starter, who) in [(&a, "a"), (&b, "b")] {
            let id = format!("{who}-{n}");
            starter.sagas().start_with(back_and_forth(), &id, json!(1)).await.unwrap();
            assert_eq!(settled(starter, &id).await, SagaState::Succeeded, "{id}");
        }
        a.stop().await;
        b.stop().await;
    }
    assert_eq!(world.seen().len(), 6 * 2 * 4, "each step was tried once: {:?}", world.seen());
}

/// Waits until a task of this method waits again after so many attempts, for this reason.
async fn until_waiting(db: &Db, method: &str, attempts: u32, kind: &str) {
    let sql = format!(
        "SELECT COUNT(*) FROM retry_task WHERE method_name = '{method}' AND status = 0 \
         AND attempt_count = {attempts} AND last_error_kind = '{kind}'"
    );
    for _ in 0..3_000 {
        if db.sql(&sql).await == Some(1) {
            return;
        }
        moment().await;
    }
    panic!("{:?}", db.store.list(&redrive::store::TaskFilter::default(), 10).await);
}

/// A new key that was made current on one node before the other had it.
async fn a_step_waits_for_the_key_of_its_journal(db: Db) {
    let world = World::default();
    let old = store_with(&db, &[1]).await;
    let a = world.engine_of(&store_with(&db, &[2, 1]).await, &["a"]).await;
    let b = world.engine_of(&old, &["b"]).await;
    // The first attempt fails while the other node writes to the journal.
    world.will("slow", [Say::Fail]).will("other", [Say::Hold]);
    let twice = Policy { max_attempts: Some(2), backoff: Backoff::fixed(Duration::from_secs(3_600)), ..quick() };
    let slow = StepDef { policy: Some(twice), ..on("b", "slow", &[]) };
    b.sagas().start_with(saga([slow, on("a", "other", &[])]), "t", json!(1)).await.unwrap();
    world.until_seen("slow", 1).await;
    world.until_seen("other", 1).await;
    world.let_go();
    while a.sagas().get("t").await.unwrap().unwrap().steps()[1].run != "done" {
        moment().await;
    }
    until_waiting(&db, "b", 1, "error").await;
    a.sagas().retry_now("t", None, None).await.unwrap();
    until_waiting(&db, "b", 1, "sealed").await; // the attempt that was not made does not count
    b.stop().await;
    let b = world.engine_of(&store_with(&db, &[1, 2]).await, &["b"]).await;
    a.sagas().retry_now("t", None, None).await.unwrap();
    assert_eq!(settled(&b, "t").await, SagaState::Succeeded);
    assert_eq!(world.seen(), ["slow", "other", "slow"].map(String::from).to_vec());
    a.stop().await;
    b.stop().await;
}

async fn a_step_that_may_be_tried_once_waits_for_its_journal(db: Db) {
    let world = World::default();
    let starter = world.engine_of(&db.store, &["elsewhere"]).await;
    starter.sagas().start_with(saga([on("go", "hotel", &[])]), "t", json!(1)).await.unwrap();
    db.sql("ALTER TABLE redrive_saga_event RENAME TO hidden").await;
    let engine = redrive::Engine::builder(db.another().await);
    let engine = engine.saga_runner("go", MethodOptions::default(), world.clone()).start().await.unwrap();
    until_waiting(&db, "go", 0, "sealed").await;
    db.sql("ALTER TABLE hidden RENAME TO redrive_saga_event").await;
    starter.sagas().retry_now("t", None, None).await.unwrap();
    assert_eq!(settled(&engine, "t").await, SagaState::Succeeded);
    assert_eq!(world.seen(), ["hotel"]);
    engine.stop().await;
    starter.stop().await;
}
