//! The registry is away, for a while or for long, or has forgotten everything.

use std::time::Duration;

use redrive::Status;
use tokio::sync::mpsc;

use crate::harness::{Db, Kind, new};
use crate::server::{Server, Way, engine_config, node, shared, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_view_is_kept_for_a_while_and_then_given_up_until_there_is_a_new_one() {
    let (db, (done, mut calls)) = (Db::fresh(Kind::Sqlite).await, mpsc::unbounded_channel());
    let mut way = Way::to(&shared()).await;
    let keep = Duration::from_secs(8);
    let a = node(&db, "a", engine_config("a"), &["m"], &done).await.start_keeping(&way.address, keep).await;
    assert_eq!(a.shards("m").len(), 64);
    way.cut();
    for n in 0..5 {
        a.enqueue(new(n)).await.unwrap();
        assert_eq!(calls.recv().await, Some(("a", n)), "with the view that it has");
    }
    until(&db, "the view is too old", || a.shards("m").is_empty()).await;
    let id = a.enqueue(new(5)).await.unwrap().id;
    assert_eq!(db.store.get(id).await.unwrap().unwrap().status, Status::Pending, "enqueues go on");
    assert!(!db.store.nodes().await.unwrap()[0].dead, "and so does the beat");
    way.mend().await;
    assert_eq!(calls.recv().await, Some(("a", 5)), "it comes back by itself");
    a.stop().await;
    assert_eq!(db.count("retry_task").await, 0);
}

/// Nacos lists somebody else; and for that reason nobody is rescued.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_only_the_registry_has_lost_keeps_what_it_runs() {
    let (db, (done, mut calls)) = (Db::fresh(Kind::Sqlite).await, mpsc::unbounded_channel());
    let mut way = Way::to(&shared()).await;
    let (held, release) = (std::sync::Arc::new(tokio::sync::Notify::new()), tokio::sync::watch::channel(false));
    let cut_off = {
        let (held, released) = (held.clone(), release.1.clone());
        let handler = move |_: redrive::Context, _: u64| {
            let (held, mut released) = (held.clone(), released.clone());
            async move {
                held.notify_one();
                released.wait_for(|released| *released).await.map_err(redrive::Verdict::from)?;
                Ok::<(), redrive::Verdict>(())
            }
        };
        let store = db.another().await;
        let nacos = redrive::registry::Nacos::new(crate::server::nacos_config(&way.address)).unwrap();
        let builder = redrive::Engine::builder(store).config(engine_config("cut off")).registry(nacos);
        builder.register("m", handler).start().await.unwrap()
    };
    cut_off.enqueue(new(0)).await.unwrap();
    held.notified().await;
    let other = node(&db, "other", engine_config("other"), &["m"], &done).await.start(&shared()).await;
    until(&db, "they share", || (cut_off.shards("m").len(), other.shards("m").len()) == (32, 32)).await;

    way.cut();
    until(&db, "the other has all", || other.shards("m").len() == 64).await;
    // The other does new work, sweeps the whole database several times, and leaves that one task where it is.
    for n in 1..200 {
        other.enqueue(new(n)).await.unwrap();
        assert_ne!(calls.recv().await.unwrap().1, 0);
    }
    assert!(db.store.nodes().await.unwrap().iter().all(|node| !node.dead));
    release.0.send(true).unwrap();
    while db.count("retry_task").await > 0 {}
    assert!(calls.try_recv().is_err(), "and its node has ended it");
    other.stop().await;
    cut_off.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_was_killed_and_comes_back_empty_is_filled_again() {
    let (db, (done, mut calls)) = (Db::fresh(Kind::Sqlite).await, mpsc::unbounded_channel());
    let mut server = Server::new(&[]).await;
    server.start().await;
    let a = node(&db, "a", engine_config("a"), &["m"], &done).await.start(&server.address).await;
    let b = node(&db, "b", engine_config("b"), &["m"], &done).await.start(&server.address).await;
    until(&db, "they share", || (a.shards("m").len(), b.shards("m").len()) == (32, 32)).await;
    server.kill().await;
    db.store.insert((0..100).map(new).collect(), db.store.now().await.unwrap()).await.unwrap();
    for _ in 0..100 {
        calls.recv().await.unwrap();
    }
    assert_eq!((a.shards("m").len(), b.shards("m").len()), (32, 32), "as they last knew");
    server.start().await;
    b.stop().await; // of which a can only hear from the new server
    until(&db, "a is alone", || a.shards("m").len() == 64).await;
    let c = node(&db, "c", engine_config("c"), &["m"], &done).await.start(&server.address).await;
    until(&db, "there is another", || (a.shards("m").len(), c.shards("m").len()) == (32, 32)).await;
    a.stop().await;
    c.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_starts_before_its_registry_begins_when_that_is_there() {
    let (db, (done, mut calls)) = (Db::fresh(Kind::Sqlite).await, mpsc::unbounded_channel());
    let mut server = Server::new(&[]).await;
    let a = node(&db, "a", engine_config("a"), &["m"], &done).await.start(&server.address).await;
    assert!(a.shards("m").is_empty(), "it knows nothing of the others");
    let id = a.enqueue(new(1)).await.unwrap().id;
    assert_eq!(db.store.get(id).await.unwrap().unwrap().status, Status::Pending);
    server.start().await;
    assert_eq!(calls.recv().await, Some(("a", 1)));
    assert_eq!(a.shards("m").len(), 64);
    a.stop().await;
}
