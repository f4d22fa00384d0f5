//! What is wrong with a table, a guard, a row or a database: a clear message, nothing lost, and the others go on.

use std::time::Duration;

use redrive::guard::{Guard, ListRequest};
use redrive::testing::Faults;

use crate::bills::{Does, Shop, guard, poll};
use crate::harness::{Db, Kind, moment, options, stores};

stores!(
    what_does_not_fit_the_table_is_said_all_at_once,
    a_table_whose_id_is_not_unique_is_refused,
    a_wrong_guard_is_left_out_and_comes_back_when_it_is_right,
    a_status_that_is_neither_success_nor_failure_is_left_alone,
    a_row_that_is_deleted_meanwhile_is_no_error,
    a_claim_that_was_overtaken_writes_no_failure_but_a_success,
    rows_that_another_node_has_claimed_wait_for_the_claim_to_end,
    one_node_polls_a_guard_at_a_time,
    a_lock_that_cannot_be_renewed_cuts_no_handler_off,
    people_are_told_although_many_rows_hang,
    thousands_of_rows_are_healed_and_promoted_in_batches,
    show_says_what_keeps_a_row_from_being_scanned,
);

async fn said(shop: &Shop, guard: Guard) -> String {
    shop.builder(guard).start().await.unwrap_err().to_string()
}

async fn what_does_not_fit_the_table_is_said_all_at_once(db: Db) {
    let shop = Shop::open(db).await;
    let no_table = Guard::table("nowhere").status_field("s").success_value(1).fail_value(0);
    assert!(said(&shop, no_table).await.contains("there is no table nowhere"));
    let no_field = said(&shop, guard().status_field("state").id_field("key")).await;
    assert!(no_field.contains("id_field: the table has no column key; it has id, user_id, status"), "{no_field}");
    assert!(no_field.contains("status_field: the table has no column state"), "{no_field}");
    shop.sql("ALTER TABLE user_bill ADD COLUMN err_status VARCHAR(9)").await;
    let wrong_kind = if shop.kind == Kind::Sqlite { "INT" } else { "VARCHAR(30)" };
    shop.sql(&format!("ALTER TABLE user_bill ADD COLUMN err_start_time {wrong_kind}")).await;
    shop.sql("ALTER TABLE user_bill ADD COLUMN paid_at DATE").await;
    let wrong = said(&shop, guard().status_field("paid_at")).await;
    for part in
        ["err_status is of the type", "an integer is needed", "err_start_time is of the type", "a datetime is needed"]
    {
        assert!(wrong.contains(part), "{part}: {wrong}");
    }
    assert!(wrong.contains("status_field: paid_at is of the type"), "{wrong}");
    let value = said(&shop, guard().status_field("id")).await;
    assert!(value.contains("success_value: id: holds integers: SUCCESS is none"), "{value}");
    let twice = shop.builder(guard()).guard(guard(), shop.database(), shop.script.clone());
    assert!(twice.start().await.unwrap_err().to_string().contains("two of this service name"));
    let quoted = said(&shop, Guard::table("user_bill; --").status_field("a\"b").success_value(1).fail_value(1)).await;
    assert!(quoted.contains("table: must be a name") && quoted.contains("status_field: must be"), "{quoted}");
}

/// Otherwise the bill of one tenant would be closed because that of another was paid.
async fn a_table_whose_id_is_not_unique_is_refused(db: Db) {
    let shop = Shop::open(db).await;
    let guard_of = |table: &str| Guard::table(table).status_field("status").success_value("SUCCESS").fail_value("FAIL");
    let fields = "tenant VARCHAR(20) NOT NULL, id BIGINT NOT NULL, status VARCHAR(20)";
    shop.sql(&format!("CREATE TABLE tenant_bill ({fields}, PRIMARY KEY (tenant, id))")).await;
    let refused = said(&shop, guard_of("tenant_bill")).await;
    for part in [
        "id_field: id does not identify a row",
        "the key of tenant_bill is (tenant, id), so several rows may have one id",
        "CREATE UNIQUE INDEX",
    ] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    let seen = guard_of("tenant_bill").inspect(shop.database()).await.unwrap();
    assert!(seen.problems.iter().any(|problem| problem.contains("(tenant, id)")), "{:?}", seen.problems);

    shop.sql(&format!("CREATE TABLE bare ({fields})")).await;
    let refused = said(&shop, guard_of("bare")).await;
    assert!(refused.contains("bare has no primary key or unique index on it"), "{refused}");
    shop.sql("CREATE UNIQUE INDEX bare_both ON bare (id, tenant)").await;
    assert!(said(&shop, guard_of("bare")).await.contains("the key of bare is (id, tenant)"));
    if shop.kind != Kind::MySql {
        shop.sql("CREATE UNIQUE INDEX bare_some ON bare (id) WHERE status = 'FAIL'").await;
        assert!(said(&shop, guard_of("bare")).await.contains("does not identify a row"), "it is unique in a part only");
    }
    // What the message says helps.
    shop.sql("CREATE UNIQUE INDEX bare_id ON bare (id)").await;
    shop.start(guard_of("bare")).await;

    shop.sql("CREATE TABLE loose (id BIGINT UNIQUE, status VARCHAR(20))").await;
    let refused = said(&shop, guard_of("loose")).await;
    assert!(refused.contains("id_field: id may be NULL"), "{refused}");
    shop.sql("CREATE TABLE prefixed (id VARCHAR(60) NOT NULL, status VARCHAR(20))").await;
    if shop.kind == Kind::MySql {
        shop.sql("CREATE UNIQUE INDEX prefixed_id ON prefixed (id(5))").await;
        assert!(said(&shop, guard_of("prefixed")).await.contains("does not identify a row"), "only its beginning is");
    }
}

async fn a_wrong_guard_is_left_out_and_comes_back_when_it_is_right(db: Db) {
    let shop = Shop::open(db).await;
    let other = Guard::table("later").status_field("status").success_value("SUCCESS").fail_value("FAIL");
    let nowhere = "postgres://nobody@127.0.0.1:1/nothing";
    let builder = shop.builder(guard()).guard(other, shop.database(), shop.script.clone());
    let builder = builder.guard(guard().service_name("unreachable"), nowhere, shop.script.clone());
    let guards = builder.lenient(true).start().await.unwrap();
    let broken: Vec<_> = guards.broken().into_iter().map(|broken| (broken.service_name, broken.why)).collect();
    assert_eq!((&*broken[0].0, &*broken[1].0), ("later", "unreachable"));
    assert!(broken[0].1.contains("there is no table later") && broken[1].1.contains("127.0.0.1:1"), "{broken:?}");
    assert_eq!(guards.service_names().len(), 3);
    shop.add(1, "FAIL", "err_status=4000 err_start_time=-1").await;
    shop.script.will(1, Does::Succeeds);
    let reports = guards.poll_once().await;
    assert_eq!((reports[0].succeeded, reports[0].error.is_none()), (1, true));
    assert!(reports[1].error.is_some() && reports[2].error.is_some());
    assert_eq!(guards.list(&ListRequest::default()).await.unwrap().total, 1);
    shop.sql("CREATE TABLE later (id INT PRIMARY KEY, status VARCHAR(9))").await;
    assert_eq!(guards.poll_once().await[1].error, None);
    assert!(guards.get("later").is_some() && guards.broken().len() == 1);
}

async fn a_status_that_is_neither_success_nor_failure_is_left_alone(db: Db) {
    let shop = Shop::open(db).await;
    let (guards, table) = shop.start(guard()).await;
    shop.add(1, "PENDING", "err_status=4000 err_start_time=-1").await;
    let before = shop.state(1).await;
    poll(&guards).await;
    assert_eq!(shop.state(1).await, before);
    let why = table.show(1).await.unwrap().not_scanned;
    assert_eq!(why[0].to_string(), "the business status is PENDING, not the fail value FAIL");
}

async fn a_row_that_is_deleted_meanwhile_is_no_error(db: Db) {
    let shop = Shop::open(db).await;
    let (guards, table) = shop.start(guard().handle_timeout(std::time::Duration::from_secs(2))).await;
    shop.add(1, "FAIL", "err_status=4000 err_start_time=-1").await;
    shop.script.will(1, Does::Hangs);
    let (report, ()) = tokio::join!(poll(&guards), async {
        shop.until_handled(1).await;
        shop.sql("DELETE FROM user_bill WHERE id = 1").await;
    });
    assert_eq!((report.again, report.lost), (0, 1));
    assert_eq!(table.show(1).await.unwrap_err().to_string(), "no row 1 in user_bill");
}

async fn a_claim_that_was_overtaken_writes_no_failure_but_a_success(db: Db) {
    let shop = Shop::open(db).await;
    let (guards, _) = shop.start(guard().handle_timeout(std::time::Duration::from_secs(2))).await;
    for (id, does, after) in [
        (1, Does::Hangs, "4001 FAIL start=+-1 n=- next=- every=- within=- manual=4000 remind=+10 told=-"),
        (2, Does::Late, "2001 SUCCESS start=+-1 n=- next=- every=- within=- manual=- remind=- told=-"),
    ] {
        shop.add(id, "FAIL", "err_status=4000 err_start_time=-1").await;
        shop.script.will(id, does);
        let (report, ()) = tokio::join!(poll(&guards), async {
            shop.until_handled(id).await;
            shop.set(id, "err_status=4001 err_next_retry_time=NULL").await; // another node has promoted it
            if does == Does::Late {
                shop.script.go_on();
            }
        });
        assert_eq!(shop.state(id).await, after, "{does:?} {report:?}");
    }
    // And what a person has closed stays closed.
    shop.add(3, "FAIL", "err_status=4000 err_start_time=-1").await;
    shop.script.will(3, Does::Late);
    tokio::join!(poll(&guards), async {
        shop.until_handled(3).await;
        shop.set(3, "err_status=2002 status='SUCCESS'").await;
        shop.script.go_on();
    });
    assert!(shop.state(3).await.starts_with("2002 SUCCESS"));
}

async fn rows_that_another_node_has_claimed_wait_for_the_claim_to_end(db: Db) {
    let shop = Shop::open(db).await;
    let (guards, _) = shop.start(guard()).await;
    // handle_timeout is 60 s: a claim is for 190 s. A process that died has left it.
    shop.add(1, "FAIL", "err_status=4000 err_start_time=0 err_next_retry_time=190 err_timeout=9999").await;
    for (wait, handled) in [(0, 0), (189, 0), (1, 1)] {
        shop.advance(wait);
        assert_eq!(poll(&guards).await.again, handled, "after {wait} s more");
    }
    assert_eq!(shop.state(1).await, "4000 FAIL start=+0 n=1 next=+195 every=- within=9999 manual=- remind=- told=-");
}

async fn one_node_polls_a_guard_at_a_time(db: Db) {
    let shop = Shop::open(db).await;
    let guard = || guard().handle_timeout(std::time::Duration::from_secs(2));
    let (one, _) = shop.start(guard()).await;
    let (two, _) = shop.start(guard()).await;
    shop.add(1, "FAIL", "err_status=4000 err_start_time=-1").await;
    shop.script.will(1, Does::Late);
    let (report, ()) = tokio::join!(poll(&one), async {
        shop.until_handled(1).await;
        assert!(poll(&two).await.held_elsewhere);
        shop.script.go_on();
    });
    assert_eq!(report.succeeded, 1);
    assert!(!poll(&two).await.held_elsewhere);
}

/// redrive's own database goes away while handlers run, and that of the business does not.
async fn a_lock_that_cannot_be_renewed_cuts_no_handler_off(db: Db) {
    let (mut options, faults) = (options(), Faults::default());
    (options.retry_for, options.faults) = (Duration::from_millis(50), Some(faults.clone()));
    let shop = Shop::open(Db::at(db.kind, db.url.clone(), options).await).await;
    let (guards, _) = shop.start(guard().concurrency(2)).await;
    for id in 1..=3 {
        shop.script.will(id, Does::Late);
        shop.add(id, "FAIL", "err_status=4000 err_start_time=-1").await;
    }
    let (reports, ()) = tokio::join!(guards.poll_once(), async {
        let mut handled = 0;
        while handled < 2 {
            handled += shop.script.asked().iter().filter(|asked| asked.starts_with("handle")).count();
            moment().await;
        }
        shop.advance(30);
        faults.set_down(true);
        shop.script.go_on();
        while shop.sql("SELECT COUNT(*) FROM user_bill WHERE err_status = 2001").await != Some(1) {
            moment().await;
        }
        for _ in 0..100 {
            moment().await; // the lock cannot be renewed
        }
        shop.script.go_on();
    });
    assert!(reports[0].error.is_some() && reports[0].succeeded == 2, "{reports:?}");
    assert_eq!(shop.sql("SELECT COUNT(*) FROM user_bill WHERE err_status = 2001").await, Some(2));
    drop(db); // its files
}

/// The bank hangs: what is left of the rows that were found waits for the next poll, which follows at once.
async fn people_are_told_although_many_rows_hang(db: Db) {
    let shop = Shop::open(db).await;
    let guards = shop.builder(guard().concurrency(2)).scan_interval(Duration::from_secs(5)).start().await.unwrap();
    for id in 1..=5 {
        shop.script.will(id, Does::Late);
        shop.add(id, "FAIL", "err_status=4000 err_start_time=-1").await;
    }
    shop.add(6, "FAIL", "err_status=4001 err_start_time=-9").await;
    let (report, ()) = tokio::join!(poll(&guards), async {
        let mut handled = 0;
        while handled < 2 {
            handled += shop.script.asked().iter().filter(|asked| asked.starts_with("handle")).count();
            moment().await;
        }
        shop.advance(5);
        shop.script.go_on();
        while shop.sql("SELECT COUNT(*) FROM user_bill WHERE err_status = 2001").await != Some(1) {
            moment().await;
        }
        shop.script.go_on();
    });
    assert_eq!((report.succeeded, report.again, report.told, report.more), (2, 0, 1, true), "{report:?}");
    assert!(shop.script.asked().iter().all(|asked| asked.starts_with("check")), "no other was begun");
}

async fn thousands_of_rows_are_healed_and_promoted_in_batches(db: Db) {
    let shop = Shop::open(db).await;
    let (guards, table) = shop.start(guard().create_index(true)).await;
    shop.fill(2500, "4000", 2500).await;
    shop.sql(&format!("UPDATE user_bill SET err_start_time = NULL, err_next_retry_time = {}", shop.at(999))).await;
    assert_eq!(poll(&guards).await.started, 2500);
    shop.advance(180);
    assert_eq!(poll(&guards).await.promoted, 2500);
    assert_eq!(table.counts().await.unwrap().0, [(4001, 2500)].into());
    shop.sql("UPDATE user_bill SET status = 'SUCCESS'").await;
    assert_eq!(poll(&guards).await.healed, 2500);
    assert_eq!(table.counts().await.unwrap().0, [(2001, 2500)].into());
}

async fn show_says_what_keeps_a_row_from_being_scanned(db: Db) {
    let shop = Shop::open(db).await;
    let (_guards, table) = shop.start(guard()).await;
    let rows = [
        (1, "FAIL", "err_status=4000 err_start_time=0", ""),
        (2, "FAIL", "err_status=4001 err_start_time=0", ""),
        (3, "FAIL", "err_status=NULL", "err_status is NULL, not 4000 or 4001: it was never marked"),
        (4, "FAIL", "err_status=2002", "err_status is 2002, not 4000 or 4001"),
        (5, "FAIL", "err_status=4000 err_next_retry_time=1", "it is not due yet, or being retried now"),
        (6, "FAIL", "err_status=4001 err_next_remind_staff_time=1", "people are told again then"),
        (7, "SUCCESS", "err_status=4000", "the business status is SUCCESS, success: the next poll closes it"),
        (8, "OTHER", "err_status=4000", "the business status is OTHER, not the fail value FAIL"),
    ];
    for (id, status, set, why) in rows {
        shop.add(id, status, set).await;
        let said: Vec<_> = table.show(id).await.unwrap().not_scanned.iter().map(ToString::to_string).collect();
        assert!(
            if why.is_empty() { said.is_empty() } else { said.len() == 1 && said[0].contains(why) },
            "{id}: {said:?}"
        );
    }
    let e = table.show("x").await.unwrap_err();
    assert!(e.to_string().contains("id: holds integers: x is none"), "{e}");
}
