//! Encrypted params, in the database and out of it.

use redrive::testing::task;
use redrive::{Context, Engine, Keyring, NewTask, Store, Verdict};
use tokio::sync::mpsc;

use crate::harness::{Db, moment, options, stores};
use crate::pay::config;

stores!(
    params_are_encrypted_where_they_are_stored_and_read_by_handlers,
    a_rotated_key_reads_what_the_old_one_wrote,
    a_missing_key_is_named_and_the_row_left_alone,
    encrypting_without_a_key_is_refused,
    what_is_wrong_with_encrypted_params_does_not_tell_them,
);

async fn open(db: &Db, ring: Option<Keyring>) -> Store {
    let mut options = options();
    options.keyring = ring;
    Store::open_with(&db.url, options).await.unwrap()
}

fn ring(id: &str, byte: u8) -> Keyring {
    Keyring::new(id, [byte; 32]).unwrap()
}

fn secret() -> NewTask {
    NewTask::new("m", "4242").unwrap().encrypt()
}

async fn run(store: Store) -> (Engine, mpsc::UnboundedReceiver<String>) {
    let (sender, seen) = mpsc::unbounded_channel();
    let handler = move |_: Context<'static>, params: String| {
        _ = sender.send(params);
        std::future::ready(Ok::<(), Verdict>(()))
    };
    (Engine::builder(store).config(config()).register("m", handler).start().await.unwrap(), seen)
}

async fn params_are_encrypted_where_they_are_stored_and_read_by_handlers(db: Db) {
    let store = open(&db, Some(ring("a", 1))).await;
    let now = store.now().await.unwrap();
    let ids: Vec<_> = store.insert(vec![secret(), secret(), NewTask::new("m", "plain").unwrap()], now).await.unwrap();
    assert_eq!(ids[0].id, ids[1].id, "the same params are the same task");
    let stored = store.get(ids[0].id).await.unwrap().unwrap();
    assert!(stored.params.contains("aes256gcm:a:") && !stored.params.contains("4242"), "{}", stored.params);
    let plain = task(NewTask::new("m", "4242").unwrap());
    assert_ne!(stored.key, plain.key, "a plain hash would tell what they are");
    assert_eq!(store.get(ids[2].id).await.unwrap().unwrap().params, "\"plain\"");
    let (engine, mut seen) = run(store).await;
    let mut both = [seen.recv().await.unwrap(), seen.recv().await.unwrap()];
    both.sort();
    assert_eq!(both, ["4242", "plain"]);
    engine.stop().await;
}

async fn a_rotated_key_reads_what_the_old_one_wrote(db: Db) {
    let old = open(&db, Some(ring("a", 1).encrypt_all())).await;
    let now = old.now().await.unwrap();
    old.insert(vec![NewTask::new("m", "old").unwrap()], now).await.unwrap();
    let rotated = ring("b", 2).with("a", [1; 32]).unwrap().encrypt_all();
    let (engine, mut seen) = run(open(&db, Some(rotated)).await).await;
    assert_eq!(seen.recv().await.unwrap(), "old");
    engine.enqueue(NewTask::new("m", "new").unwrap()).await.unwrap();
    assert_eq!(seen.recv().await.unwrap(), "new");
    engine.stop().await;
}

async fn a_missing_key_is_named_and_the_row_left_alone(db: Db) {
    let store = open(&db, Some(ring("a", 1))).await;
    let id = store.insert(vec![secret()], store.now().await.unwrap()).await.unwrap()[0].id;
    let before = store.get(id).await.unwrap().unwrap();
    for wrong in [None, Some(ring("b", 2)), Some(ring("a", 9))] {
        let (engine, mut seen) = run(open(&db, wrong).await).await;
        let tried = store.get(id).await.unwrap().unwrap().history.len();
        _ = engine.retry_now(id, None).await; // refused if it is being tried at this moment
        let after = loop {
            let task = store.get(id).await.unwrap().unwrap();
            if task.history.len() > tried {
                break task;
            }
            moment().await;
        };
        let error = after.last_error.unwrap();
        assert!(error.kind.as_str() == "sealed" && error.message.contains("\"a\""), "{error:?}");
        assert_eq!((after.params, after.attempts), (before.params.clone(), 0));
        engine.stop().await;
        assert!(seen.try_recv().is_err());
    }
}

async fn encrypting_without_a_key_is_refused(db: Db) {
    let said = db.store.insert(vec![secret()], db.store.now().await.unwrap()).await.unwrap_err().to_string();
    assert!(said.contains("StoreOptions::keyring"), "{said}");
}

async fn what_is_wrong_with_encrypted_params_does_not_tell_them(db: Db) {
    let store = open(&db, Some(ring("a", 1))).await;
    let handler = async |_: Context, _: u64| Ok(());
    let engine = Engine::builder(store.clone()).config(config()).register("m", handler).start().await.unwrap();
    let id = engine.enqueue(secret()).await.unwrap().id;
    let letter = loop {
        if let Some(letter) = store.get_dead(id).await.unwrap() {
            break letter;
        }
        moment().await;
    };
    engine.stop().await;
    let said = letter.task.last_error.unwrap().message;
    assert!(said.contains("encrypted params") && !said.contains("4242"), "{said}");
}
