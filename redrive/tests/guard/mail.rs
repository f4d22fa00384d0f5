//! Source 5, §7.8: people are told by mail, by a real mail server that may be down.

use crate::bills::{Shop, guard, poll};
use crate::harness::{Db, Kind, stores};
use crate::sink::{Sink, header, text};

stores!(
    source_5_7_8_reminders_come_at_growing_intervals,
    source_5_7_8_what_could_not_be_sent_is_noted_and_tried_again,
    one_mail_tells_of_all_rows_and_names_some,
    rows_that_cannot_be_noted_are_not_told_of_at_every_poll,
);

async fn source_5_7_8_reminders_come_at_growing_intervals(db: Db) {
    let shop = Shop::open(db).await;
    let sink = Sink::start().await;
    let guards = shop.builder(guard()).mail(sink.mail()).start().await.unwrap();
    shop.add(1, "FAIL", "err_status=4001 err_start_time=-9 err_retry_count=2").await;
    // manual_remind_interval is 10: 10 × 1, then 10 × 2, then 10 × 3. "Has passed" is strictly so.
    let story = [
        (0, 1, "manual=2000 remind=+10 told=1"),
        (10, 1, "manual=2000 remind=+10 told=1"),
        (1, 2, "manual=2000 remind=+31 told=2"),
        (20, 2, "manual=2000 remind=+31 told=2"),
        (1, 3, "manual=2000 remind=+62 told=3"),
    ];
    for (wait, mails, after) in story {
        shop.advance(wait);
        poll(&guards).await;
        assert_eq!(shop.state(1).await, format!("4001 FAIL start=+-9 n=2 next=- every=- within=- {after}"));
        assert_eq!(sink.mails().len(), mails, "{after}");
    }
    let mail = &sink.mails()[0];
    let subject = header(mail, "Subject").unwrap();
    assert!(subject.contains("=?utf-8?"), "{subject}"); // the service's name is Chinese
    assert_eq!(header(mail, "X-Rcpt-To").as_deref(), Some("ops@example.org"));
    let said = text(mail);
    assert!(said.contains("1 rows of user_bill wait for a person"), "{said}");
    assert!(said.contains("id 1, user 1001: abnormal since 20") && said.contains("told 0 times before"), "{said}");
    assert!(said.contains("POST /api/user/admin/manual-bill-success?dataId=<id>"), "{said}");
}

async fn source_5_7_8_what_could_not_be_sent_is_noted_and_tried_again(db: Db) {
    let shop = Shop::open(db).await;
    let mut sink = Sink::down();
    let guards = shop.builder(guard()).mail(sink.mail()).start().await.unwrap();
    shop.add(1, "FAIL", "err_status=4001 err_start_time=-9 err_manual_notify_count=1").await;
    let report = poll(&guards).await;
    assert!(report.not_told.unwrap().to_lowercase().contains("refused"));
    assert_eq!(shop.state(1).await, "4001 FAIL start=+-9 n=- next=- every=- within=- manual=4000 remind=+20 told=1");
    sink.up().await;
    shop.advance(21);
    assert_eq!(poll(&guards).await.not_told, None);
    assert_eq!(shop.state(1).await, "4001 FAIL start=+-9 n=- next=- every=- within=- manual=2000 remind=+41 told=2");
}

async fn one_mail_tells_of_all_rows_and_names_some(db: Db) {
    let shop = Shop::open(db).await;
    let sink = Sink::start().await;
    let guards = shop.builder(guard()).mail(sink.mail()).start().await.unwrap();
    shop.fill(2500, "4001", 2500).await;
    let report = poll(&guards).await;
    assert_eq!((report.told, sink.mails().len()), (2500, 1));
    let said = text(&sink.mails()[0]);
    assert!(said.contains("2500 rows of user_bill") && said.contains("… and 2450 more"), "{said}");
    assert_eq!(shop.sql("SELECT COUNT(*) FROM user_bill WHERE err_manual_notify_count = 1").await, Some(2500));
    assert_eq!(poll(&guards).await.told, 0);
}

/// Has the database refuse every note that people were told.
async fn refuse_notes(shop: &Shop) {
    let refuse = match shop.kind {
        Kind::Sqlite => {
            "CREATE TRIGGER no_note BEFORE UPDATE OF err_manual_notify_count ON user_bill \
             BEGIN SELECT RAISE(ABORT, 'read only'); END"
        }
        Kind::Postgres => {
            "CREATE FUNCTION no_note() RETURNS trigger AS $$ BEGIN RAISE EXCEPTION 'read only'; END $$ LANGUAGE plpgsql; \
             CREATE TRIGGER no_note BEFORE UPDATE OF err_manual_notify_count ON user_bill \
             FOR EACH ROW EXECUTE FUNCTION no_note()"
        }
        Kind::MySql => {
            "CREATE TRIGGER no_note BEFORE UPDATE ON user_bill FOR EACH ROW \
             SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'read only'"
        }
    };
    shop.sql(refuse).await;
}

async fn allow_notes(shop: &Shop) {
    let on = if shop.kind == Kind::Postgres { " ON user_bill" } else { "" };
    shop.sql(&format!("DROP TRIGGER no_note{on}")).await;
}

async fn rows_that_cannot_be_noted_are_not_told_of_at_every_poll(db: Db) {
    let shop = Shop::open(db).await;
    let sink = Sink::start().await;
    let guards = shop.builder(guard()).mail(sink.mail()).start().await.unwrap();
    shop.add(1, "FAIL", "err_status=4001 err_start_time=-9").await;
    shop.add(2, "PAYING", "err_status=4001 err_start_time=-9").await;
    refuse_notes(&shop).await;
    // manual_remind_interval is 10: the reminders come after 10 × 1, then after 10 × 2.
    for (wait, mails) in [(0, 1), (1, 1), (8, 1), (1, 2), (19, 2), (1, 3), (1, 3)] {
        shop.advance(wait);
        let report = guards.poll_once().await.remove(0);
        assert!(report.error.is_some_and(|e| e.contains("read only")));
        assert_eq!(sink.mails().len(), mails, "after {wait} s more");
    }
    // Another row is told of at once, together with those that wait.
    allow_notes(&shop).await;
    shop.sql("UPDATE user_bill SET status = 'FAIL' WHERE id = 2").await;
    refuse_notes_again(&shop).await;
    for mails in [4, 4] {
        assert!(guards.poll_once().await.remove(0).error.is_some());
        assert_eq!(sink.mails().len(), mails);
    }
    // What was told is noted as soon as that is possible, without a mail.
    allow_notes(&shop).await;
    poll(&guards).await;
    assert_eq!(sink.mails().len(), 4);
    assert_eq!(shop.sql("SELECT COUNT(*) FROM user_bill WHERE err_manual_notify_count = 1").await, Some(2));
}

async fn refuse_notes_again(shop: &Shop) {
    if shop.kind == Kind::Postgres {
        shop.sql("DROP FUNCTION no_note()").await;
    }
    refuse_notes(shop).await;
}
