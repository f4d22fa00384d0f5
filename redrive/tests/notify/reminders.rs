//! Reminders of dead letters, from the letter to the mail.

use std::time::Duration;

use redrive::notify::{Format, Notifier, NotifyConfig, Round};
use redrive::{Context, Engine, Notify, OnExhausted, Policy, TaskId, Timestamp, Verdict};

use crate::harness::*;
use crate::hook::Hook;
use crate::sink::{Sink, header, text};

stores!(
    people_are_reminded_until_someone_takes_it,
    reminders_survive_a_channel_that_is_down,
    a_channel_is_reminded_though_another_is_down,
    notices_and_reminders_are_in_one_message,
    two_nodes_send_one_reminder,
    an_engine_reminds,
);

const SENT: Round = Round { sent: 1, failed: 0 };
const FAILED: Round = Round { sent: 0, failed: 1 };
const NOTHING: Round = Round { sent: 0, failed: 0 };

fn escalating() -> Policy {
    Policy { on_exhausted: OnExhausted::Escalate, max_attempts: Some(1), ..Policy::default() }
}

async fn letter(db: &Db, n: u64, policy: Policy) -> TaskId {
    let (task, node) = claimed(&db.store, new(n).policy(policy).business("order", "7")).await;
    end(&db.store, &task, timeout(), NOW).await;
    db.store.retire(node).await.unwrap();
    assert!(db.store.get_dead(task.id).await.unwrap().is_some());
    task.id
}

async fn round(db: &Db, config: NotifyConfig, now: Timestamp) -> Round {
    Notifier::new(db.store.clone(), config).unwrap().run_once("a", now).await.unwrap()
}

fn hours(n: u64) -> Timestamp {
    later(n * 3600)
}

async fn people_are_reminded_until_someone_takes_it(db: Db) {
    let sink = Sink::start().await;
    let id = letter(&db, 1, escalating()).await;
    assert_eq!(round(&db, sink.config(), NOW).await, SENT, "at once");
    assert_eq!(round(&db, sink.config(), later(3599)).await, NOTHING);
    assert_eq!(round(&db, sink.config(), hours(1)).await, SENT);
    assert_eq!(round(&db, sink.config(), hours(2)).await, NOTHING);
    assert_eq!(round(&db, sink.config(), hours(3)).await, SENT);
    assert_eq!(db.count("redrive_reminder").await, 0, "what was sent is gone");
    let mails = sink.mails();
    assert_eq!(header(&mails[2], "Subject").as_deref(), Some("[redrive] 1 dead letter waits for a person: m (1)"));
    let said = text(&mails[2]);
    assert!(
        said.contains(&format!("{id} order/7, reminder 3, dead as exhausted since {NOW}, timeout: no answer")),
        "{said}"
    );
    db.store.acting("ada").unwrap().take_over(id, "ada", hours(4)).await.unwrap();
    assert_eq!((round(&db, sink.config(), hours(100)).await, sink.mails().len()), (NOTHING, 3));
}

async fn reminders_survive_a_channel_that_is_down(db: Db) {
    let mut sink = Sink::down();
    let ids = [letter(&db, 1, escalating()).await, letter(&db, 2, escalating()).await];
    assert_eq!(round(&db, sink.config(), NOW).await, FAILED);
    assert_eq!(round(&db, sink.config(), hours(1)).await, FAILED);
    db.store.acting("ada").unwrap().resolve(&ids[..1], hours(1)).await.unwrap();
    sink.up().await;
    assert_eq!(round(&db, sink.config(), hours(2)).await, SENT);
    let mails = sink.mails();
    let [mail] = &*mails else { panic!("{} mails", mails.len()) };
    let said = text(mail);
    assert!(said.contains(&format!("{} order/7, reminder 2", ids[1])), "one, the newest: {said}");
    assert!(!said.contains(&ids[0].to_string()), "what was resolved meanwhile is not reminded of: {said}");
    assert_eq!(db.count("redrive_reminder").await, 0);
}

async fn a_channel_is_reminded_though_another_is_down(db: Db) {
    let (sink, hook) = (Sink::start().await, Hook::answering("503 Service Unavailable", "").await);
    let mut config = sink.config();
    config.channels.insert("hook".into(), hook.channel(Format::Generic));
    letter(&db, 1, escalating()).await;
    for now in [NOW, hours(1), hours(3)] {
        assert_eq!(round(&db, config.clone(), now).await, Round { sent: 1, failed: 1 });
    }
    assert_eq!((sink.mails().len(), db.count("redrive_reminder").await), (3, 1));
    hook.answer("200 OK", "");
    assert_eq!(round(&db, config.clone(), hours(4)).await, SENT, "to the one that has not got it");
    let body = hook.requests().pop().unwrap().json();
    assert_eq!(body["details"]["reminders"]["methods"][0]["oldest"][0]["n"], 3);
    assert_eq!((sink.mails().len(), db.count("redrive_reminder").await), (3, 0));
    // A channel that is taken out of the settings holds nothing up.
    hook.answer("503 Service Unavailable", "");
    assert_eq!(round(&db, config, hours(6)).await, Round { sent: 1, failed: 1 });
    assert_eq!((round(&db, sink.config(), hours(7)).await, db.count("redrive_reminder").await), (NOTHING, 0));
}

async fn notices_and_reminders_are_in_one_message(db: Db) {
    let sink = Sink::start().await;
    let id = letter(&db, 1, Policy { notify: Some(Notify::Failures(1)), ..escalating() }).await;
    assert_eq!(round(&db, sink.config(), NOW).await, SENT);
    let mails = sink.mails();
    let subject = "[redrive] 1 task keeps failing: m (1); 1 dead letter waits for a person: m (1)";
    assert_eq!((mails.len(), header(&mails[0], "Subject").as_deref()), (1, Some(subject)));
    assert!(text(&mails[0]).contains("reminder 1") && text(&mails[0]).contains("attempt 1"), "{}", text(&mails[0]));
    assert_eq!((db.count("redrive_reminder").await, db.count("redrive_notice").await), (0, 0));
    assert!(db.store.get_dead(id).await.unwrap().unwrap().task.notified_at.is_some());
}

async fn two_nodes_send_one_reminder(db: Db) {
    let sink = Sink::start().await;
    letter(&db, 1, escalating()).await;
    let nodes = [("a", db.store.clone()), ("b", db.another().await), ("c", db.another().await)];
    let rounds = nodes.map(|(name, store)| {
        let notifier = Notifier::new(store, sink.config()).unwrap();
        tokio::spawn(async move { notifier.run_once(name, NOW).await.unwrap() })
    });
    let mut sent = 0;
    for round in rounds {
        sent += round.await.unwrap().sent;
    }
    assert_eq!((sent, sink.mails().len(), db.count("redrive_reminder").await), (1, 1, 0));
}

async fn an_engine_reminds(db: Db) {
    let mut sink = Sink::start().await;
    let handler = async |_: Context<'static>, _: u64| Err::<(), _>(Verdict::from(std::fmt::Error));
    let engine = Engine::builder(db.store.clone()).register("m", handler).notify(sink.config()).start().await.unwrap();
    engine.enqueue(new(1).policy(escalating())).await.unwrap();
    let mail = sink.next_mail().await;
    assert_eq!(header(&mail, "Subject").as_deref(), Some("[redrive] 1 dead letter waits for a person: m (1)"));
    engine.stop().await;
}

#[test]
fn the_interval_is_a_setting() {
    let read = |json| serde_json::from_str::<NotifyConfig>(json).unwrap();
    assert_eq!(read("{}").remind_every, Duration::from_secs(3600));
    let zero = read(r#"{"remind_every": "0s"}"#).validate().unwrap_err().to_string();
    assert!(zero.contains("remind_every:"), "{zero}");
}
