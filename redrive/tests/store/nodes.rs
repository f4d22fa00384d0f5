use std::collections::HashSet;
use std::time::Duration;

use redrive::Store;
use redrive::store::{Fault, Faults, KeyWalk, NodeSeen, Registration, Retention};

use crate::harness::*;

layouts!(
    numbers_are_fresh_also_when_nodes_start_at_once,
    a_number_is_never_used_again,
    a_beat_moves_and_tells_the_time,
    a_fence_needs_the_beat_that_was_watched,
    a_fenced_node_cannot_come_back,
    nodes_publish_what_they_handle,
    the_database_tells_the_time,
    a_lock_has_one_holder,
    a_lock_that_expired_has_a_new_term,
    a_lock_raced_for_has_one_winner,
    a_node_whose_registration_was_not_heard_of_is_there_once,
    a_fence_that_was_not_heard_of_is_followed_up,
);

/// The database, where what is written meets these faults.
async fn with_faults(db: &Db, planned: &[Fault]) -> (Store, Faults) {
    let faults = Faults::default();
    let mut options = options();
    options.faults = Some(faults.clone());
    let store = Store::open_with(&db.url, options).await.unwrap();
    planned.iter().for_each(|fault| faults.next_write(*fault));
    (store, faults)
}

/// The answers to its first write, and to its last, are lost.
async fn a_node_whose_registration_was_not_heard_of_is_there_once(db: Db) {
    let planned = [Fault::FailAfterCommit, Fault::Delay(Duration::from_millis(1)), Fault::FailAfterCommit];
    let (store, faults) = with_faults(&db, &planned).await;
    let number = node(&store).await;
    assert!(faults.are_spent());
    let there: Vec<_> = db.store.nodes().await.unwrap().iter().map(|node| node.number).collect();
    assert_eq!(there, [number]);
}

async fn a_fence_that_was_not_heard_of_is_followed_up(db: Db) {
    let victim = node(&db.store).await;
    let (store, faults) = with_faults(&db, &[Fault::FailAfterCommit]).await;
    assert!(store.fence(victim, 0).await.unwrap());
    assert!(faults.are_spent());
    assert!(!store.fence(victim, 0).await.unwrap(), "once");
}

async fn numbers_are_fresh_also_when_nodes_start_at_once(db: Db) {
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let store = db.store.clone();
        calls.spawn(async move { node(&store).await });
    }
    assert_eq!(calls.join_all().await.into_iter().collect::<HashSet<_>>().len(), 20);
}

async fn a_number_is_never_used_again(db: Db) {
    let first = node(&db.store).await;
    let forgotten = async || {
        let (week, keep) = (later(7 * 86_400 + 1), Retention::default());
        db.store.sweep_old(&keep, &mut KeyWalk::default(), week).await.unwrap().nodes
    };
    assert_eq!(forgotten().await, 0, "it lives");
    db.store.fence(first, 0).await.unwrap();
    assert_eq!(forgotten().await, 1);
    assert!(node(&db.store).await > first);
}

async fn a_beat_moves_and_tells_the_time(db: Db) {
    let me = node(&db.store).await;
    let before = db.store.nodes().await.unwrap()[0].beat;
    let NodeSeen::Alive(time) = db.store.beat(me).await.unwrap() else { panic!() };
    let seen = db.store.nodes().await.unwrap().remove(0);
    assert_eq!((seen.beat, seen.beat_at, seen.dead), (before + 1, time, false));
}

async fn a_fence_needs_the_beat_that_was_watched(db: Db) {
    let me = node(&db.store).await;
    let watched = db.store.nodes().await.unwrap()[0].beat;
    db.store.beat(me).await.unwrap();
    assert!(!db.store.fence(me, watched).await.unwrap(), "it has beaten since");
    assert!(db.store.fence(me, watched + 1).await.unwrap());
    assert!(!db.store.fence(me, watched + 1).await.unwrap(), "once");
}

async fn a_fenced_node_cannot_come_back(db: Db) {
    let me = node(&db.store).await;
    db.store.fence(me, 0).await.unwrap();
    assert_eq!(db.store.beat(me).await.unwrap(), NodeSeen::Fenced);
    assert!(db.store.nodes().await.unwrap()[0].dead);
}

async fn nodes_publish_what_they_handle(db: Db) {
    let methods = vec!["pay".into(), "退款".into()];
    let who = Registration { methods, ..Registration::default() };
    let me = db.store.register(&who, NOW).await.unwrap();
    db.store.announce_leave(me).await.unwrap();
    let seen = db.store.nodes().await.unwrap().remove(0);
    assert_eq!((seen.registration.methods, seen.leaving), (vec!["pay".to_owned(), "退款".to_owned()], true));
}

async fn the_database_tells_the_time(db: Db) {
    let (one, here, two) =
        (db.store.now().await.unwrap(), redrive::Clock::system().now(), db.store.now().await.unwrap());
    assert!(one <= two);
    assert!(here.since(one) < Duration::from_secs(60) && one.since(here) < Duration::from_secs(60), "{one} {here}");
}

async fn a_lock_has_one_holder(db: Db) {
    let minute = Duration::from_secs(60);
    let lock = db.store.lock("upkeep", "a", minute, NOW).await.unwrap().unwrap();
    assert_eq!((lock.term, lock.expires_at), (1, later(60)));
    assert_eq!(db.store.lock("upkeep", "b", minute, later(59)).await.unwrap(), None);
    let renewed = db.store.lock("upkeep", "a", minute, later(59)).await.unwrap().unwrap();
    assert_eq!((renewed.term, renewed.expires_at), (1, later(119)), "renewed in the same term");
    assert!(db.store.lock("other", "b", minute, NOW).await.unwrap().is_some(), "locks are apart");
    assert_eq!(db.store.held_lock("upkeep", later(60)).await.unwrap(), Some(renewed.clone()));
    assert_eq!(db.store.held_lock("upkeep", later(119)).await.unwrap(), None, "it has expired");
    assert_eq!(db.store.held_lock("nobody's", NOW).await.unwrap(), None);
    assert!(db.store.unlock(&renewed).await.unwrap());
    assert_eq!(db.store.lock("upkeep", "b", minute, later(60)).await.unwrap().unwrap().term, 2);
    assert!(!db.store.unlock(&renewed).await.unwrap(), "not ours any more");
}

async fn a_lock_that_expired_has_a_new_term(db: Db) {
    let minute = Duration::from_secs(60);
    db.store.lock("l", "a", minute, NOW).await.unwrap();
    assert_eq!(db.store.lock("l", "a", minute, later(60)).await.unwrap().unwrap().term, 2, "its own, too");
    assert_eq!(db.store.lock("l", "b", minute, later(120)).await.unwrap().unwrap().term, 3);
}

async fn a_lock_raced_for_has_one_winner(db: Db) {
    for round in 0..5 {
        let mut calls = tokio::task::JoinSet::new();
        for n in 0..8 {
            let store = db.store.clone();
            calls.spawn(async move {
                store.lock(&format!("l{round}"), &n.to_string(), Duration::from_secs(60), NOW).await.unwrap()
            });
        }
        assert_eq!(calls.join_all().await.into_iter().flatten().count(), 1);
    }
}
