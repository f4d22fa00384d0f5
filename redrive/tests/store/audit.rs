//! What people did is written down, with it or not at all.

use std::sync::Arc;
use std::time::Duration;

use redrive::store::{
    AuditEntry, AuditFilter, AuditOutcome, Audited, Cancelled, Fault, Faults, Keep, KeyWalk, Redriven, Retention, Role,
};
use redrive::{Policy, Store, TaskId};
use serde_json::json;

use crate::harness::*;

layouts!(
    each_action_on_a_task_has_a_record,
    each_action_on_a_letter_has_a_record,
    an_action_and_its_record_are_one,
    what_cannot_be_done_leaves_no_record,
    several_letters_have_one_record,
    records_are_found_by_who_what_and_when,
    a_record_is_small_whatever_is_in_it,
    pauses_are_recorded,
    a_lost_answer_makes_no_second_record,
    records_go_when_their_time_is_over,
    two_people_set_the_same_field_at_once,
);

async fn records_go_when_their_time_is_over(db: Db) {
    for (who, at) in [("ada", NOW), ("bob", later(3600))] {
        db.store.audit(&AuditEntry::new(who, "task.cancel", "7"), at).await.unwrap();
    }
    let mut retention = Retention::default();
    let swept = async |retention: &Retention| {
        db.store.sweep_old(retention, &mut KeyWalk::default(), later(2 * 3600)).await.unwrap().audited
    };
    assert_eq!(swept(&retention).await, 0, "they are kept for ever unless the settings say otherwise");
    retention.keep_audit = Keep::For(Duration::from_secs(90 * 60));
    assert_eq!(swept(&retention).await, 1);
    assert_eq!(audit(&db).await.iter().map(|a| &*a.entry.who).collect::<Vec<_>>(), ["bob"]);
}

async fn two_people_set_the_same_field_at_once(db: Db) {
    for round in 0..20 {
        let path = format!("methods.m{round}.concurrency");
        let set = |by: &'static str, n: i64| {
            let (store, path) = (db.store.clone(), path.clone());
            tokio::spawn(async move { store.set_field(&path, Some(&json!(n)), by, NOW).await })
        };
        let (ada, bob) = (set("ada", 1), set("bob", 2));
        ada.await.unwrap().unwrap();
        bob.await.unwrap().unwrap();
    }
    assert_eq!(db.store.set_fields().await.unwrap().len(), 20);
    assert_eq!(audit(&db).await.len(), 40, "both are told of");
}

async fn audit(db: &Db) -> Vec<Audited> {
    db.store.audits(&AuditFilter::default(), 100).await.unwrap()
}

async fn last(db: &Db) -> AuditEntry {
    audit(db).await.remove(0).entry
}

async fn each_action_on_a_task_has_a_record(db: Db) {
    let id = add(&db.store, new(1).delay(Duration::from_secs(60))).await;
    let alice = db.store.acting("alice").unwrap().noting("INC-7");
    alice.retry_now(id, later(5)).await.unwrap();
    let entry = last(&db).await;
    assert_eq!((&*entry.who, &*entry.action, &*entry.target), ("alice", "task.retry_now", &*id.to_string()));
    assert_eq!(entry.before, Some(json!({ "next_retry_time": later(60) })));
    assert_eq!((entry.after, entry.note.as_deref()), (Some(json!({ "next_retry_time": later(5) })), Some("INC-7")));
    assert_eq!(db.store.get(id).await.unwrap().unwrap().updated_by.as_deref(), Some("alice"));

    let policy = Arc::new(Policy { max_attempts: Some(2), ..Policy::default() });
    alice.edit_policy(id, &policy, later(6)).await.unwrap();
    let entry = last(&db).await;
    assert_eq!(entry.before, serde_json::to_value(Policy::default()).ok());
    assert_eq!(entry.after, serde_json::to_value(&*policy).ok());

    assert_eq!(alice.cancel(id, later(7)).await.unwrap(), Cancelled::Ended);
    assert_eq!((&*last(&db).await.action, audit(&db).await.len()), ("task.cancel", 3));
    let (task, _) = claimed(&db.store, new(2)).await;
    assert_eq!(alice.fail(task.id, later(8)).await.unwrap(), Cancelled::Requested);
    assert_eq!((&*last(&db).await.action, audit(&db).await[0].at), ("task.fail", later(8)));
}

async fn each_action_on_a_letter_has_a_record(db: Db) {
    let mut ids = Vec::new();
    for n in 0..3 {
        let id = add(&db.store, new(n)).await;
        db.store.fail(id, NOW).await.unwrap();
        ids.push(id);
    }
    let bob = db.store.acting("bob").unwrap();
    let went = bob.redrive(&ids[..1], None, later(1)).await.unwrap();
    let [Redriven::As(new)] = went[..] else { panic!("{went:?}") };
    let entry = last(&db).await;
    assert_eq!((&*entry.action, &*entry.target), ("dead.redrive", &*ids[0].to_string()));
    assert_eq!(entry.after, Some(json!({ "redriven": 1, "redriven_as": [new] })));
    db.store.fail(new, NOW).await.unwrap();
    let twice = Arc::new(Policy { max_attempts: Some(2), ..Policy::default() });
    bob.redrive(&[new], Some(twice), later(1)).await.unwrap();
    let policy = last(&db).await.after.unwrap()["policy"].clone();
    assert_eq!(policy, json!({ "max_attempts": 2 }), "that it is another one");
    assert_eq!(bob.noting("paid by hand").resolve(&ids[1..2], later(2)).await.unwrap(), 1);
    assert_eq!((&*last(&db).await.action, last(&db).await.note.as_deref()), ("dead.resolve", Some("paid by hand")));
    assert_eq!(bob.discard(&ids[2..], later(3)).await.unwrap(), 1);
    assert_eq!((&*last(&db).await.action, audit(&db).await.len()), ("dead.discard", 4));
}

async fn an_action_and_its_record_are_one(db: Db) {
    let pending = add(&db.store, new(1)).await;
    let letter = add(&db.store, new(2)).await;
    db.store.fail(letter, NOW).await.unwrap();
    let (running, _) = claimed_among(&db).await;
    db.sql("ALTER TABLE redrive_audit RENAME TO hidden").await;
    let alice = db.store.acting("alice").unwrap();
    let task = db.store.get(pending).await.unwrap();
    alice.cancel(pending, NOW).await.unwrap_err();
    alice.fail(running, NOW).await.unwrap_err();
    alice.retry_now(pending, later(9)).await.unwrap_err();
    alice.edit_policy(pending, &Arc::default(), later(9)).await.unwrap_err();
    alice.redrive(&[letter], None, NOW).await.unwrap_err();
    alice.resolve(&[letter], NOW).await.unwrap_err();
    alice.take_over(letter, "alice", NOW).await.unwrap_err();
    db.store.pause("m", Some("alice"), NOW).await.unwrap_err();
    assert_eq!(db.store.get(pending).await.unwrap(), task);
    assert_eq!(db.count("retry_task WHERE cancel_requested <> 0").await, 0);
    assert_eq!(db.store.get_dead(letter).await.unwrap().unwrap().owner, None);
    assert_eq!((db.count("retry_archive").await, db.store.paused().await.unwrap().len()), (0, 0));
    db.sql("ALTER TABLE hidden RENAME TO redrive_audit").await;
    alice.cancel(pending, NOW).await.unwrap();
    assert_eq!((audit(&db).await.len(), db.count("retry_archive").await), (1, 1));
}

/// A running task of another method, so that nothing else is claimed.
async fn claimed_among(db: &Db) -> (TaskId, redrive::NodeNumber) {
    let (me, other) = (node(&db.store).await, redrive::NewTask::new("other", &1).unwrap());
    let id = add(&db.store, other).await;
    assert_eq!(db.store.claim_due(&slices_of("other"), me, NOW, 10).await.unwrap().tasks.len(), 1);
    (id, me)
}

async fn what_cannot_be_done_leaves_no_record(db: Db) {
    let (task, _) = claimed(&db.store, new(1)).await;
    let (alice, nobody) = (db.store.acting("alice").unwrap(), TaskId::from_i64(12345));
    alice.retry_now(task.id, NOW).await.unwrap_err();
    alice.cancel(nobody, NOW).await.unwrap_err();
    alice.edit_policy(nobody, &Arc::default(), NOW).await.unwrap_err();
    alice.acknowledge(nobody, NOW).await.unwrap_err();
    assert_eq!(alice.redrive(&[nobody], None, NOW).await.unwrap(), [Redriven::Gone]);
    assert_eq!(alice.discard(&[nobody], NOW).await.unwrap(), 0);
    assert!(audit(&db).await.is_empty());
    assert!(db.store.acting("").is_err() && db.store.acting(&"x".repeat(101)).is_err(), "someone must answer for it");
}

async fn several_letters_have_one_record(db: Db) {
    let ids = add_many(&db.store, 150).await;
    for id in &ids {
        db.store.fail(*id, NOW).await.unwrap();
    }
    db.store.acting("alice").unwrap().redrive(&ids, None, later(1)).await.unwrap();
    let entry = last(&db).await;
    assert_eq!((&*entry.target, audit(&db).await.len()), ("150 letters", 1));
    let after = entry.after.unwrap();
    assert_eq!((&after["redriven"], after["redriven_as"].as_array().unwrap().len()), (&json!(150), 100));
}

async fn records_are_found_by_who_what_and_when(db: Db) {
    for (n, (who, action)) in
        [("ada", "task.cancel"), ("ada", "task_x"), ("bob", "task.fail"), ("bob", "Task.fail")].into_iter().enumerate()
    {
        db.store.audit(&AuditEntry::new(who, action, (n % 2).to_string()), later(n as u64 * 60)).await.unwrap();
    }
    let found = async |filter: AuditFilter| {
        let entries = db.store.audits(&filter, 10).await.unwrap();
        entries.iter().map(|a| a.at.since(NOW).as_secs() / 60).collect::<Vec<_>>()
    };
    let (all, text) = (AuditFilter::default, |s: &str| Some(s.to_owned()));
    assert_eq!(found(all()).await, [3, 2, 1, 0], "newest first");
    assert_eq!(found(AuditFilter { who: text("ada"), ..all() }).await, [1, 0]);
    assert_eq!(found(AuditFilter { action: text("task."), ..all() }).await, [2, 0], "a dot is a dot, and case counts");
    assert_eq!(found(AuditFilter { action: text("%"), ..all() }).await, Vec::<u64>::new());
    assert_eq!(found(AuditFilter { target: text("1"), ..all() }).await, [3, 1]);
    assert_eq!(found(AuditFilter { from: Some(later(60)), before: Some(later(180)), ..all() }).await, [2, 1]);
    let first = db.store.audits(&all(), 2).await.unwrap();
    assert_eq!(found(AuditFilter { after: Some(first[1].id), ..all() }).await, [1, 0]);
}

async fn a_record_is_small_whatever_is_in_it(db: Db) {
    let long = "漢\0".repeat(20_000);
    let entry = AuditEntry::new(&long, &long, &*long).refused(&long).noting(Some(&long)).changed(json!(long), json!(1));
    db.store.audit(&entry, NOW).await.unwrap();
    let read = last(&db).await;
    assert_eq!(read, entry);
    assert!(matches!(&read.outcome, AuditOutcome::Refused(why) if why.len() <= 100 && why.starts_with('漢')));
    assert!(read.before.unwrap()["left_out"].as_str().unwrap().ends_with("bytes") && read.note.unwrap().len() <= 4096);
}

async fn pauses_are_recorded(db: Db) {
    db.store.pause("m", Some("ada"), NOW).await.unwrap();
    db.store.pause("m", Some("bob"), NOW).await.unwrap();
    db.store.resume("m", None, later(1)).await.unwrap();
    let seen: Vec<_> = audit(&db).await.into_iter().map(|a| (a.entry.who, a.entry.action, a.entry.target)).collect();
    let record = |who: &str, action: &str| (who.to_owned(), action.to_owned(), "m".to_owned());
    assert_eq!(seen, [record("unknown", "method.resume"), record("ada", "method.pause")]);
    let eve = db.store.acting("eve").unwrap().noting("they move");
    assert!(eve.pause("m", later(2)).await.unwrap() && !eve.pause("m", later(2)).await.unwrap());
    assert_eq!((last(&db).await.note.as_deref(), &*last(&db).await.who), (Some("they move"), "eve"));
    assert!(eve.resume("m", later(3)).await.unwrap());
    assert_eq!((&*last(&db).await.action, last(&db).await.note.as_deref()), ("method.resume", Some("they move")));
}

/// Each write is committed and its answer lost: it is tried again, and is there once.
async fn a_lost_answer_makes_no_second_record(db: Db) {
    let (faults, mut faulty) = (Faults::default(), options());
    faulty.faults = Some(faults.clone());
    let store = Store::open_with(&db.url, faulty).await.unwrap();
    let ada = store.acting("ada").unwrap();
    let ids = add_many(&db.store, 6).await;
    for id in &ids[3..] {
        db.store.fail(*id, NOW).await.unwrap();
    }
    let lose = || faults.next_write(Fault::FailAfterCommit);
    lose();
    assert_eq!(ada.cancel(ids[0], NOW).await.unwrap(), Cancelled::Ended);
    lose();
    ada.retry_now(ids[1], later(1)).await.unwrap();
    lose();
    assert!(matches!(ada.redrive(&ids[3..4], None, NOW).await.unwrap()[..], [Redriven::As(_)]));
    lose();
    assert_eq!(ada.resolve(&ids[4..5], NOW).await.unwrap(), 1);
    lose();
    ada.take_over(ids[5], "ada", NOW).await.unwrap();
    lose();
    let made = store.create_token("t", Role::Viewer, None, "ada", NOW).await.unwrap();
    lose();
    assert!(store.revoke_token(&made.token.id, "ada", NOW).await.unwrap());
    assert!(faults.are_spent());
    let mut actions: Vec<String> = audit(&db).await.into_iter().map(|a| a.entry.action).collect();
    actions.sort();
    let each_once = [
        "dead.redrive",
        "dead.resolve",
        "dead.take_over",
        "task.cancel",
        "task.retry_now",
        "token.create",
        "token.revoke",
    ];
    assert_eq!(actions, each_once);
    assert_eq!((db.count("redrive_token").await, db.count("retry_archive").await), (1, 3));
}
