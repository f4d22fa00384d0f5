//! Dead letters that people are reminded of.

use std::time::Duration;

use redrive::store::AuditFilter;
use redrive::{NewTask, OnExhausted, Policy, Store, TaskId, Timestamp};
use serde_json::json;

use crate::harness::*;

layouts!(
    reminders_come_less_and_less_often,
    a_letter_that_is_closed_or_taken_over_is_left_alone,
    to_have_seen_it_stops_nothing,
    two_nodes_write_one_reminder,
    an_older_schema_learns_of_people,
);

const HOUR: Duration = Duration::from_secs(3600);

pub fn escalating(n: u64) -> NewTask {
    new(n).policy(Policy { on_exhausted: OnExhausted::Escalate, ..Policy::default() })
}

async fn escalated(db: &Db, n: u64) -> TaskId {
    let id = add(&db.store, escalating(n)).await;
    db.store.fail(id, NOW).await.unwrap();
    id
}

/// What a node does; of which letters it wrote reminders.
async fn remind(store: &Store, now: Timestamp) -> Vec<TaskId> {
    let letters = store.letters_to_remind(now, 10).await.unwrap();
    let written = store.note_reminded(&letters, HOUR, now).await.unwrap();
    assert_eq!(written, letters.len() as u64);
    letters.iter().map(|letter| letter.task.id).collect()
}

/// Source 5: the n-th is followed by n intervals.
async fn reminders_come_less_and_less_often(db: Db) {
    let id = escalated(&db, 1).await;
    let plain = add(&db.store, new(2)).await;
    db.store.fail(plain, NOW).await.unwrap();
    let mut hours = Vec::new();
    for minute in 0..60 * 11 {
        if !remind(&db.store, later(minute * 60)).await.is_empty() {
            hours.push(minute / 60);
        }
    }
    assert_eq!(hours, [0, 1, 3, 6, 10]);
    let letter = db.store.get_dead(id).await.unwrap().unwrap();
    assert_eq!((letter.remind_count, letter.next_remind_time), (5, Some(later(15 * 3600))));
    let waiting = db.store.reminders_for("ops", 10).await.unwrap();
    assert_eq!(
        waiting.iter().map(|r| (r.task_id, r.n)).collect::<Vec<_>>(),
        [(id, 5)],
        "the newest took the others' place"
    );
}

async fn a_letter_that_is_closed_or_taken_over_is_left_alone(db: Db) {
    let ids = [escalated(&db, 1).await, escalated(&db, 2).await, escalated(&db, 3).await, escalated(&db, 4).await];
    let ada = db.store.acting("ada").unwrap();
    let read = db.store.letters_to_remind(NOW, 10).await.unwrap();
    ada.take_over(ids[0], "bob", later(1)).await.unwrap();
    ada.resolve(&ids[1..2], later(1)).await.unwrap();
    ada.redrive(&ids[2..3], None, later(1)).await.unwrap();
    assert_eq!(db.store.note_reminded(&read, HOUR, later(2)).await.unwrap(), 1, "only the one that was left");
    assert_eq!(remind(&db.store, later(7200)).await, [ids[3]]);
    ada.take_over(ids[3], "eve", later(7201)).await.unwrap();
    assert!(db.store.reminders_for("ops", 10).await.unwrap().is_empty(), "not though it was written already");
    assert!(remind(&db.store, later(1_000_000)).await.is_empty());
    ada.take_over(ids[3], "mia", later(7202)).await.unwrap();
    let letter = db.store.get_dead(ids[3]).await.unwrap().unwrap();
    assert_eq!((letter.owner.as_deref(), letter.acknowledged_at), (Some("mia"), Some(later(7201))));
    let record =
        db.store.audits(&AuditFilter { action: Some("dead.take".into()), ..Default::default() }, 9).await.unwrap();
    assert_eq!(
        (record[0].entry.before.clone(), record[0].entry.after.clone()),
        (Some(json!({"owner": "eve"})), Some(json!({"owner": "mia"})))
    );
    assert_eq!(record.len(), 3);
}

async fn to_have_seen_it_stops_nothing(db: Db) {
    let id = escalated(&db, 1).await;
    let ada = db.store.acting("ada").unwrap();
    ada.acknowledge(id, later(1)).await.unwrap();
    ada.acknowledge(id, later(2)).await.unwrap();
    assert_eq!(db.store.get_dead(id).await.unwrap().unwrap().acknowledged_at, Some(later(1)), "the first time counts");
    assert_eq!(remind(&db.store, later(3)).await, [id]);
    assert_eq!(db.store.reminders_for("ops", 1).await.unwrap()[0].acknowledged_at, Some(later(1)));
    let said = ada.take_over(TaskId::from_i64(5), "ada", NOW).await.unwrap_err().to_string();
    assert_eq!(said, "no dead letter 5");
    assert!(ada.take_over(id, "", NOW).await.is_err());
}

async fn two_nodes_write_one_reminder(db: Db) {
    escalated(&db, 1).await;
    let (one, other) = (db.store.clone(), db.another().await);
    let letters = one.letters_to_remind(NOW, 10).await.unwrap();
    let (a, b) = tokio::join!(one.note_reminded(&letters, HOUR, NOW), other.note_reminded(&letters, HOUR, NOW));
    assert_eq!((a.unwrap() + b.unwrap(), db.count("redrive_reminder").await), (1, 1));
}

async fn an_older_schema_learns_of_people(db: Db) {
    for sql in [
        "DROP TABLE redrive_token",
        "DROP TABLE redrive_reminder",
        "UPDATE redrive_schema SET version = 3 WHERE one = 1",
    ] {
        db.sql(sql).await;
    }
    let store = db.another().await;
    assert!(store.tokens().await.unwrap().is_empty() && store.reminders_for("ops", 1).await.unwrap().is_empty());
    assert_eq!(db.sql("SELECT version FROM redrive_schema").await, Some(8));
}
