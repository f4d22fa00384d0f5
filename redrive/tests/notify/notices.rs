//! Notices from the failed attempt to the mail: what is written, what is sent, to whom, how often.

use std::time::Duration;

use redrive::notify::{Channel, Format, Notifier, NotifyConfig, Round};
use redrive::store::{KeyWalk, Retention, Settle, Settled};
use redrive::{
    Backoff, DeadReason, Failure, Jitter, NewTask, NodeNumber, Notify, Outcome, Policy, Store, Task, TaskId, Timestamp,
    settle,
};

use crate::harness::*;
use crate::hook::Hook;
use crate::sink::{Sink, header, text};

stores!(
    ten_thousand_notices_make_one_mail,
    nothing_is_lost_while_the_mail_server_is_down,
    two_nodes_send_one_mail,
    a_task_that_succeeds_meanwhile_is_still_told_of,
    a_task_is_told_of_once_though_it_fails_on,
    a_task_that_was_claimed_before_it_was_told_of_is_told_of_once,
    a_dead_task_is_told_of_with_its_reason,
    a_channel_does_not_wait_for_another_that_fails,
    a_channel_that_is_taken_away_holds_nothing_up,
    the_first_message_goes_at_once_and_the_next_waits,
    a_notice_knows_the_task,
    a_policy_without_notice_writes_none,
    a_settle_that_was_lost_tells_nobody,
    a_notice_is_written_with_the_outcome_or_neither_is,
    an_older_schema_is_brought_up_to_date,
    a_notice_that_no_channel_takes_goes_after_a_week,
);

const SENT: Round = Round { sent: 1, failed: 0 };
const FAILED: Round = Round { sent: 0, failed: 1 };
const NOTHING: Round = Round { sent: 0, failed: 0 };

/// People are told at the first failure; tried again a second later.
fn telling() -> Policy {
    Policy {
        notify: Some(Notify::Failures(1)),
        backoff: Backoff::fixed(Duration::from_secs(1)),
        jitter: Jitter::None,
        ..Policy::default()
    }
}

fn task(n: u64) -> NewTask {
    new(n).policy(telling())
}

/// A task that failed once and waits; people are to be told of it.
pub async fn fail_one(db: &Db, n: u64) -> (TaskId, NodeNumber) {
    let (task, node) = claimed(&db.store, task(n)).await;
    assert!(matches!(end(&db.store, &task, timeout(), NOW).await, Settled::Went(_)));
    (task.id, node)
}

async fn reclaim(store: &Store, node: NodeNumber, now: Timestamp) -> Task {
    claim_all(store, node, now).await.tasks.pop().unwrap()
}

fn notifier(db: &Db, config: NotifyConfig) -> Notifier {
    Notifier::new(db.store.clone(), config).unwrap()
}

async fn notified_at(db: &Db, table: &str, id: TaskId) -> Option<i64> {
    let sql = format!("SELECT COALESCE(notified_at, -1) FROM {table} WHERE id = {}", id.as_i64());
    db.sql(&sql).await.filter(|at| *at >= 0)
}

async fn ten_thousand_notices_make_one_mail(db: Db) {
    let node = node(&db.store).await;
    db.store.insert((0..10_000).map(task).collect(), NOW).await.unwrap();
    let tasks = claim_all(&db.store, node, NOW).await.tasks;
    let settles: Vec<Settle> =
        tasks.into_iter().map(|t| (settle(&t, &timeout(), NOW, 0.0), t)).map(|(c, t)| Settle::new(t, c)).collect();
    for part in settles.chunks(2_000) {
        db.store.settle(part, NOW).await.unwrap();
    }
    assert_eq!((settles.len(), db.count("redrive_notice").await), (10_000, 10_000));
    let sink = Sink::start().await;
    let notifier = notifier(&db, sink.config());
    assert_eq!(notifier.run_once("a", NOW).await.unwrap(), SENT);
    assert_eq!(notifier.run_once("a", later(3600)).await.unwrap(), NOTHING);
    let mails = sink.mails();
    let [mail] = &*mails else { panic!("{} mails", mails.len()) };
    assert_eq!(header(mail, "Subject").as_deref(), Some("[redrive] 10000 tasks keep failing: m (10000)"));
    assert!(mail.len() < 10_000, "{}", mail.len());
    assert_eq!(db.count("redrive_notice").await, 0);
    assert_eq!(db.count("retry_task WHERE notified_at IS NULL").await, 0);
}

async fn nothing_is_lost_while_the_mail_server_is_down(db: Db) {
    let mut sink = Sink::down();
    let notifier = notifier(&db, sink.config());
    let (first, node) = fail_one(&db, 1).await;
    assert_eq!(notifier.run_once("a", NOW).await.unwrap(), FAILED);
    assert_eq!(notifier.run_once("a", later(4)).await.unwrap(), NOTHING, "it is left alone for 5 s");
    assert_eq!(notifier.run_once("a", later(5)).await.unwrap(), FAILED);
    let state = db.store.channel_states().await.unwrap().pop().unwrap();
    assert_eq!((&*state.name, state.tries, state.sent, state.next_at), ("ops", 2, 0, later(15)));
    assert!(state.last_error.unwrap().to_lowercase().contains("refused"));
    assert_eq!(notified_at(&db, "retry_task", first).await, None, "marked only when really sent");

    let second = add(&db.store, task(2)).await;
    let claimed = claim_all(&db.store, node, NOW).await.tasks.pop().unwrap();
    end(&db.store, &claimed, timeout(), NOW).await;
    sink.up().await;
    assert_eq!(notifier.run_once("a", later(15)).await.unwrap(), SENT);
    sink.stop().await;
    let mails = sink.mails();
    let [mail] = &*mails else { panic!("{} mails", mails.len()) };
    assert!(text(mail).contains(&first.to_string()) && text(mail).contains(&second.to_string()), "{mail}");
    assert_eq!(db.count("redrive_notice").await, 0);
    assert_eq!(notified_at(&db, "retry_task", first).await, Some(later(15).as_millis()));
    let state = db.store.channel_states().await.unwrap().pop().unwrap();
    assert_eq!((state.tries, state.sent, state.last_error), (0, 1, None));
    sink.up().await;
    assert_eq!(notifier.run_once("a", later(3600)).await.unwrap(), NOTHING);
    assert_eq!(sink.mails().len(), 1);
}

async fn two_nodes_send_one_mail(db: Db) {
    let sink = Sink::start().await;
    fail_one(&db, 1).await;
    let nodes = [("a", db.store.clone()), ("b", db.another().await), ("c", db.another().await)];
    let rounds = nodes.map(|(name, store)| {
        let notifier = Notifier::new(store, sink.config()).unwrap();
        tokio::spawn(async move { notifier.run_once(name, NOW).await.unwrap() })
    });
    let mut sent = 0;
    for round in rounds {
        sent += round.await.unwrap().sent;
    }
    assert_eq!((sent, sink.mails().len(), db.count("redrive_notice").await), (1, 1, 0));
}

async fn a_task_that_succeeds_meanwhile_is_still_told_of(db: Db) {
    let sink = Sink::start().await;
    let (id, node) = fail_one(&db, 1).await;
    let task = reclaim(&db.store, node, later(1)).await;
    end(&db.store, &task, Outcome::Done, later(1)).await;
    assert_eq!((db.count("retry_task").await, db.count("redrive_notice").await), (0, 1));
    assert_eq!(notifier(&db, sink.config()).run_once("a", later(2)).await.unwrap(), SENT);
    assert!(text(&sink.mails()[0]).contains(&id.to_string()));
    assert_eq!(db.count("redrive_notice").await, 0);
}

async fn a_task_is_told_of_once_though_it_fails_on(db: Db) {
    let sink = Sink::start().await;
    let notifier = notifier(&db, sink.config());
    let (_, node) = fail_one(&db, 1).await;
    for second in 1..4 {
        let task = reclaim(&db.store, node, later(second)).await;
        end(&db.store, &task, timeout(), later(second)).await;
    }
    assert_eq!(db.count("redrive_notice").await, 1, "one for four failures");
    assert_eq!(notifier.run_once("a", later(4)).await.unwrap(), SENT);
    for second in 4..8 {
        let task = reclaim(&db.store, node, later(second)).await;
        end(&db.store, &task, timeout(), later(second)).await;
    }
    assert_eq!(db.count("redrive_notice").await, 0);
    assert_eq!((notifier.run_once("a", later(3600)).await.unwrap(), sink.mails().len()), (NOTHING, 1));
}

/// Its owner does not know that people were told while it ran; the row does.
async fn a_task_that_was_claimed_before_it_was_told_of_is_told_of_once(db: Db) {
    let sink = Sink::start().await;
    let notifier = notifier(&db, sink.config());
    let (id, node) = fail_one(&db, 1).await;
    let running = reclaim(&db.store, node, later(1)).await;
    assert_eq!(notifier.run_once("a", later(1)).await.unwrap(), SENT);
    let change = settle(&running, &timeout(), later(2), 0.0);
    assert!(change.notice, "the owner believes that it is to be told of");
    db.store.settle(&[Settle::new(running, change)], later(2)).await.unwrap();
    assert_eq!(db.count("redrive_notice").await, 0);
    assert_eq!(notified_at(&db, "retry_task", id).await, Some(later(1).as_millis()));

    let other = add(&db.store, task(2)).await;
    let first = claim_all(&db.store, node, NOW).await.tasks.pop().unwrap();
    end(&db.store, &first, timeout(), later(2)).await;
    let tasks = claim_all(&db.store, node, later(3)).await.tasks;
    let running = tasks.into_iter().find(|t| t.id == other).unwrap();
    assert_eq!(notifier.run_once("a", later(100)).await.unwrap(), SENT);
    let dead = end(&db.store, &running, Outcome::Failed(Failure::reject("invalid_data", "no")), later(101)).await;
    assert_eq!(dead, Settled::Went(redrive::To::Dead(DeadReason::Rejected)));
    assert_eq!((db.count("redrive_notice").await, sink.mails().len()), (0, 2));
    assert_eq!(notified_at(&db, "retry_dead", other).await, Some(later(100).as_millis()));
}

async fn a_dead_task_is_told_of_with_its_reason(db: Db) {
    let sink = Sink::start().await;
    let last = Policy { max_attempts: Some(1), ..telling() };
    let (task, _) = claimed(&db.store, new(1).policy(last)).await;
    end(&db.store, &task, timeout(), NOW).await;
    assert_eq!((db.count("retry_dead").await, db.count("redrive_notice").await), (1, 1));
    assert_eq!(notified_at(&db, "retry_dead", task.id).await, None);
    assert_eq!(notifier(&db, sink.config()).run_once("a", later(1)).await.unwrap(), SENT);
    let mail = text(&sink.mails()[0]);
    assert!(mail.contains("m: 1 task, given up") && mail.contains("given up as exhausted"), "{mail}");
    assert_eq!(notified_at(&db, "retry_dead", task.id).await, Some(later(1).as_millis()));
}

async fn a_channel_does_not_wait_for_another_that_fails(db: Db) {
    let sink = Sink::start().await;
    let hook = Hook::answering("503 Service Unavailable", "").await;
    let mut config = sink.config();
    config.channels.insert("chat".into(), hook.channel(Format::Slack));
    let notifier = notifier(&db, config);
    let (first, node) = fail_one(&db, 1).await;
    assert_eq!(notifier.run_once("a", NOW).await.unwrap(), Round { sent: 1, failed: 1 });
    assert_eq!((sink.mails().len(), hook.requests().len()), (1, 1));
    assert_eq!(db.store.notices(10).await.unwrap()[0].sent_to, ["ops"], "it waits for the other");
    assert_eq!(notified_at(&db, "retry_task", first).await, None);

    let second = add(&db.store, task(2)).await;
    let claimed = claim_all(&db.store, node, NOW).await.tasks.pop().unwrap();
    end(&db.store, &claimed, timeout(), NOW).await;
    hook.answer("200 OK", "ok");
    assert_eq!(notifier.run_once("a", later(60)).await.unwrap(), Round { sent: 2, failed: 0 });
    let mails = sink.mails();
    assert_eq!(mails.len(), 2);
    assert!(!text(&mails[1]).contains(&first.to_string()), "the mail server has the first already");
    let said = hook.requests()[1].json()["text"].as_str().unwrap().to_owned();
    assert!(said.contains(&first.to_string()) && said.contains(&second.to_string()), "{said}");
    assert_eq!(db.count("redrive_notice").await, 0);
    assert_eq!(db.count("retry_task WHERE notified_at IS NULL").await, 0);
}

async fn a_channel_that_is_taken_away_holds_nothing_up(db: Db) {
    let sink = Sink::start().await;
    let mut config = sink.config();
    config.channels.insert("gone".into(), Channel::Mail(Sink::down().mail()));
    fail_one(&db, 1).await;
    let both = notifier(&db, config).run_once("a", NOW).await.unwrap();
    assert_eq!((both, db.count("redrive_notice").await), (Round { sent: 1, failed: 1 }, 1));
    assert_eq!(notifier(&db, sink.config()).run_once("a", later(1)).await.unwrap(), NOTHING);
    assert_eq!((sink.mails().len(), db.count("redrive_notice").await), (1, 0));
    assert_eq!(db.count("retry_task WHERE notified_at IS NULL").await, 0);
}

async fn the_first_message_goes_at_once_and_the_next_waits(db: Db) {
    let sink = Sink::start().await;
    let notifier = notifier(&db, sink.config());
    let (_, node) = fail_one(&db, 1).await;
    assert_eq!(notifier.run_once("a", NOW).await.unwrap(), SENT);
    for n in 2..5 {
        add(&db.store, task(n)).await;
        let claimed = claim_all(&db.store, node, NOW).await.tasks.pop().unwrap();
        end(&db.store, &claimed, timeout(), NOW).await;
        let another = Notifier::new(db.another().await, sink.config()).unwrap();
        assert_eq!(another.run_once("b", later(59)).await.unwrap(), NOTHING, "not even by another node");
    }
    assert_eq!(notifier.run_once("a", later(60)).await.unwrap(), SENT);
    let mails = sink.mails();
    assert_eq!(mails.len(), 2);
    assert_eq!(header(&mails[1], "Subject").as_deref(), Some("[redrive] 3 tasks keep failing: m (3)"));
}

async fn a_notice_knows_the_task(db: Db) {
    let long = "é".repeat(4000);
    let (task, _) = claimed(&db.store, task(1).business("order", "7")).await;
    end(&db.store, &task, Outcome::Failed(Failure::retry("http.503", &long)), later(9)).await;
    let notices = db.store.notices(10).await.unwrap();
    let [notice] = &*notices else { panic!("{notices:?}") };
    assert_eq!((notice.task_id, &*notice.method, notice.attempts, notice.dead_reason), (task.id, "m", 1, None));
    assert_eq!((notice.business.as_ref(), notice.created_at), (task.business.as_ref(), later(9)));
    assert_eq!((notice.error.kind.as_str(), notice.error.at), ("http.503", later(9)));
    assert_eq!((notice.error.message.len(), &notice.sent_to), (200, &Vec::new()));
}

async fn a_policy_without_notice_writes_none(db: Db) {
    let after_two = Policy { notify: Some(Notify::Failures(2)), ..telling() };
    let node = node(&db.store).await;
    for new in [new(1), new(2).policy(after_two)] {
        add(&db.store, new).await;
        let task = reclaim(&db.store, node, NOW).await;
        end(&db.store, &task, timeout(), NOW).await;
    }
    assert_eq!(db.count("redrive_notice").await, 0);
    for task in claim_all(&db.store, node, later(3600)).await.tasks {
        end(&db.store, &task, timeout(), later(3600)).await;
    }
    assert_eq!(db.count("redrive_notice").await, 1, "the second failure of the second task");
}

async fn a_settle_that_was_lost_tells_nobody(db: Db) {
    let (task, node) = claimed(&db.store, task(1)).await;
    db.sql(&format!("UPDATE redrive_node SET dead = 1 WHERE number = {node}")).await;
    assert_eq!(end(&db.store, &task, timeout(), NOW).await, Settled::Lost);
    let rejected = Outcome::Failed(Failure::reject("invalid_data", "no"));
    assert_eq!(end(&db.store, &task, rejected, NOW).await, Settled::Lost);
    assert_eq!(db.count("redrive_notice").await, 0);
}

async fn a_notice_is_written_with_the_outcome_or_neither_is(db: Db) {
    let (task, _) = claimed(&db.store, task(1)).await;
    db.sql("ALTER TABLE redrive_notice RENAME TO hidden").await;
    for outcome in [timeout(), Outcome::Failed(Failure::reject("invalid_data", "no"))] {
        let change = settle(&task, &outcome, NOW, 0.0);
        db.store.settle(&[Settle::new(task.clone(), change)], NOW).await.unwrap_err();
        assert_eq!(db.store.get(task.id).await.unwrap(), Some(task.clone()), "as it was: running, ours");
        assert_eq!(db.count("retry_dead").await, 0);
    }
    db.sql("ALTER TABLE hidden RENAME TO redrive_notice").await;
    assert!(matches!(end(&db.store, &task, timeout(), NOW).await, Settled::Went(_)));
    assert_eq!(db.count("redrive_notice").await, 1);
}

async fn an_older_schema_is_brought_up_to_date(db: Db) {
    for sql in [
        "DROP TABLE redrive_notice",
        "DROP TABLE redrive_channel",
        "UPDATE redrive_schema SET version = 1 WHERE one = 1",
    ] {
        db.sql(sql).await;
    }
    let store = db.another().await;
    assert_eq!(store.notices(1).await.unwrap(), []);
    assert_eq!(store.channel_states().await.unwrap(), []);
}

async fn a_notice_that_no_channel_takes_goes_after_a_week(db: Db) {
    fail_one(&db, 1).await;
    let day = 24 * 3_600;
    let swept = async |now: Timestamp| {
        db.store.sweep_old(&Retention::default(), &mut KeyWalk::default(), now).await.unwrap().notices
    };
    assert_eq!((swept(later(6 * day)).await, swept(later(8 * day)).await), (0, 1));
    assert_eq!(db.count("redrive_notice").await, 0);
}
