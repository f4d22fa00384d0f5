//! Source 5, table by table and condition by condition: the state before, the state after, in exact values.

use redrive::guard::{CheckUser, ERR_COLUMNS, Marked, RowId};

use crate::bills::{Does, Shop, guard, poll};
use crate::harness::{Db, Kind, stores};

stores!(
    source_5_3_the_nine_columns_are_added_with_their_types_and_comments,
    source_5_4_3_mark_abnormal_begins_anew_from_every_normal_state,
    source_5_4_3_mark_abnormal_with_a_user_is_for_that_users_row_only,
    source_5_4_3_mark_abnormal_is_not_undone_by_the_callers_rollback,
    source_5_4_3_check_user_err_names_the_rows_that_block,
    source_5_7_3_heal_gives_a_start_and_closes_what_has_succeeded,
    source_5_7_4_what_is_retried,
    source_5_7_4_what_has_changed_since_it_was_found_is_not_retried,
    source_5_7_5_check_handle_check,
    source_5_7_6_failure_puts_off_and_then_hands_over,
    source_5_7_6_a_retry_that_fails_after_the_timeout_hands_over,
    source_5_7_6_the_rows_own_interval_and_timeout_win,
    source_5_7_7_what_has_timed_out_is_promoted,
    source_5_7_8_who_is_told_of,
    source_5_7_9_processing_successful,
);

async fn source_5_3_the_nine_columns_are_added_with_their_types_and_comments(db: Db) {
    let shop = Shop::open(db).await;
    let (_guards, table) = shop.start(guard()).await;
    let (sql, int, time) = match shop.kind {
        Kind::Sqlite => ("SELECT name, lower(type), '' FROM pragma_table_info('user_bill')", "integer", "datetime"),
        Kind::Postgres => (
            "SELECT attname::text, format_type(atttypid, atttypmod), col_description(attrelid, attnum) FROM pg_attribute \
             WHERE attrelid = 'user_bill'::regclass AND attnum > 0",
            "integer",
            "timestamp without time zone",
        ),
        Kind::MySql => (
            // MariaDB says the width, and NULL as a text where MySQL has NULL.
            "SELECT column_name, REPLACE(column_type, 'int(11)', 'int'), column_comment FROM information_schema.columns \
             WHERE table_schema = DATABASE() AND table_name = 'user_bill' AND is_nullable = 'YES' \
             AND COALESCE(column_default, 'NULL') = 'NULL'",
            "int",
            "datetime",
        ),
    };
    let there = shop.texts(sql).await;
    for wanted in ERR_COLUMNS {
        let kind = if wanted.is_time { time } else { int };
        let comment = if shop.kind == Kind::Sqlite { "" } else { wanted.comment };
        let row = [wanted.name, kind, comment].map(|text| Some(text.to_owned())).to_vec();
        assert!(there.contains(&row), "{row:?} is not in {there:?}");
    }
    assert_eq!(table.inspect().await.unwrap().missing_columns, [""; 0]);
}

/// What `mark_abnormal` makes of a row at +7.
const MARKED: &str = "4000 FAIL start=+7 n=0 next=- every=5 within=180 manual=- remind=- told=0";

async fn source_5_4_3_mark_abnormal_begins_anew_from_every_normal_state(db: Db) {
    let shop = Shop::open(db).await;
    let (_guards, table) = shop.start(guard()).await;
    let used = "err_start_time=-50 err_retry_count=9 err_next_retry_time=99 err_min_interval=1 err_timeout=1 \
                err_submit_manual_status=4002 err_next_remind_staff_time=98 err_manual_notify_count=4";
    shop.advance(7);
    for (id, code) in [(1, "NULL"), (2, "2000"), (3, "2001"), (4, "2002")] {
        shop.add(id, "FAIL", &format!("err_status={code} {used}")).await;
        assert_eq!(table.mark_abnormal(id).await.unwrap(), Marked::Changed);
        assert_eq!(shop.state(id).await, MARKED, "from {code}");
    }
    for (id, code) in [(5, "4000"), (6, "4001")] {
        shop.add(id, "FAIL", &format!("err_status={code} {used}")).await;
        let before = shop.state(id).await;
        let marked = table.mark_abnormal(id).await.unwrap();
        assert_eq!(marked, Marked::AlreadyAbnormal);
        assert!(marked.to_string().contains("already"));
        assert_eq!(shop.state(id).await, before);
    }
    let marked = table.mark_abnormal(99).await.unwrap();
    assert_eq!(marked, Marked::NoSuchRow);
    assert!(marked.to_string().contains("not committed yet, or was rolled back"));
}

async fn source_5_4_3_mark_abnormal_with_a_user_is_for_that_users_row_only(db: Db) {
    let shop = Shop::open(db).await;
    let (_guards, table) = shop.start(guard()).await;
    shop.add(1, "FAIL", "").await;
    shop.advance(7);
    assert_eq!(table.mark_abnormal_of(1, "1002").await.unwrap(), Marked::NoSuchRow);
    assert_eq!(shop.state(1).await, "- FAIL start=- n=- next=- every=- within=- manual=- remind=- told=-");
    assert_eq!(table.mark_abnormal_of(1, "1001").await.unwrap(), Marked::Changed);
    assert_eq!(shop.state(1).await, MARKED);
    let e = table.mark_abnormal_of(1, "somebody").await.unwrap_err();
    assert!(e.to_string().contains("user_id: holds integers: somebody is none"), "{e}");
}

async fn source_5_4_3_mark_abnormal_is_not_undone_by_the_callers_rollback(db: Db) {
    let shop = Shop::open(db).await;
    let (_guards, table) = shop.start(guard()).await;
    shop.add(1, "FAIL", "").await;
    shop.advance(7);
    let mut caller = shop.raw().await;
    caller.sql("BEGIN").await.unwrap();
    // Not yet committed, so nobody else sees it. (SQLite has one writer: there the caller only reads.)
    let write =
        if shop.kind == Kind::Sqlite { "SELECT 1" } else { "INSERT INTO user_bill (id, status) VALUES (2, 'FAIL')" };
    caller.sql(write).await.unwrap();
    assert_eq!(table.mark_abnormal(2).await.unwrap(), Marked::NoSuchRow);
    assert_eq!(table.mark_abnormal(1).await.unwrap(), Marked::Changed);
    caller.sql("ROLLBACK").await.unwrap();
    assert_eq!(shop.state(1).await, MARKED);
}

async fn source_5_4_3_check_user_err_names_the_rows_that_block(db: Db) {
    let shop = Shop::open(db).await;
    let (_guards, table) = shop.start(guard()).await;
    for (id, code) in [(1, "4000"), (11, "4001"), (21, "2000"), (31, "2001"), (41, "2002"), (51, "NULL"), (2, "4000")] {
        shop.add(id, "FAIL", &format!("err_status={code} err_start_time=-{id}")).await;
    }
    let Err(CheckUser::Blocked(blocked)) = table.check_user_err("1001").await else { panic!("not blocked") };
    let rows: Vec<_> = blocked.rows.iter().map(|row| (row.id.clone(), row.err_status)).collect();
    assert_eq!(rows, [(RowId::Int(11), 4001), (RowId::Int(1), 4000)]);
    assert_eq!((blocked.total, blocked.to_string().contains("2 rows of user 1001")), (2, true));
    table.check_user_err(1003).await.unwrap();
    assert!(matches!(table.check_user_err("x").await, Err(CheckUser::Failed(_))));
}

async fn source_5_7_3_heal_gives_a_start_and_closes_what_has_succeeded(db: Db) {
    let shop = Shop::open(db).await;
    let (guards, _) = shop.start(guard()).await;
    let rest = "every=- within=- manual=- remind=- told=-";
    // id, business status, before, after
    let rows = [
        (1, "OTHER", "err_status=4000", format!("4000 OTHER start=+0 n=- next=- {rest}")),
        (2, "OTHER", "err_status=4001", format!("4001 OTHER start=+0 n=- next=- {rest}")),
        (3, "OTHER", "err_status=4000 err_start_time=-9", format!("4000 OTHER start=+-9 n=- next=- {rest}")),
        (4, "OTHER", "err_status=2000", format!("2000 OTHER start=- n=- next=- {rest}")),
        (
            5,
            "SUCCESS",
            "err_status=4000 err_start_time=-9 err_retry_count=1 err_next_retry_time=60",
            format!("2001 SUCCESS start=+-9 n=1 next=- {rest}"),
        ),
        (6, "SUCCESS", "err_status=4001 err_start_time=-9", format!("2001 SUCCESS start=+-9 n=- next=- {rest}")),
        (7, "SUCCESS", "err_status=4001", format!("2001 SUCCESS start=+0 n=- next=- {rest}")),
        (8, "SUCCESS", "err_status=2000", format!("2000 SUCCESS start=- n=- next=- {rest}")),
        (9, "SUCCESS", "err_status=NULL", format!("- SUCCESS start=- n=- next=- {rest}")),
        (10, "SUCCESS", "err_status=2002", format!("2002 SUCCESS start=- n=- next=- {rest}")),
    ];
    for (id, status, before, _) in &rows {
        shop.add(*id, status, before).await;
    }
    let report = poll(&guards).await;
    for (id, status, before, after) in &rows {
        assert_eq!(shop.state(*id).await, *after, "{status} {before}");
    }
    assert_eq!((report.started, report.healed), (3, 3));
    assert!(shop.script.asked().is_empty(), "none of them is FAIL");
}

async fn source_5_7_4_what_is_retried(db: Db) {
    let shop = Shop::open(db).await;
    let (guards, _) = shop.start(guard()).await;
    let mut id = 0;
    let mut wanted = Vec::new();
    for code in ["NULL", "2000", "4000", "4001", "2001", "2002"] {
        for next in ["NULL", "-1", "0", "1"] {
            for status in ["FAIL", "SUCCESS", "OTHER"] {
                id += 1;
                shop.add(id, status, &format!("err_status={code} err_start_time=-9 err_next_retry_time={next}")).await;
                if code == "4000" && next != "1" && status == "FAIL" {
                    wanted.push(format!("handle {id}"));
                }
            }
        }
    }
    assert_eq!(wanted.len(), 3);
    poll(&guards).await;
    let mut handled: Vec<_> = shop.script.asked().into_iter().filter(|asked| asked.starts_with("handle")).collect();
    handled.sort();
    assert_eq!(handled, wanted);
}

/// With one row at a time the second is found with the first and claimed after it.
async fn source_5_7_4_what_has_changed_since_it_was_found_is_not_retried(db: Db) {
    let shop = Shop::open(db).await;
    let (guards, _) = shop.start(guard().concurrency(1)).await;
    let changes = [
        "err_status=4001 err_next_retry_time=NULL",
        "err_start_time=NULL",
        "err_next_retry_time=60",
        "err_retry_count=1",
        "status='SUCCESS'",
    ];
    for (first, change) in (1i64..).step_by(2).zip(changes) {
        let second = first + 1;
        shop.script.will(first, Does::Late);
        // Rows that were never retried come first.
        shop.add(first, "FAIL", "err_status=4000 err_start_time=-9").await;
        shop.add(second, "FAIL", "err_status=4000 err_start_time=-9 err_next_retry_time=-1").await;
        let (report, ()) = tokio::join!(poll(&guards), async {
            shop.until_handled(first).await;
            shop.set(second, change).await;
            shop.script.go_on();
        });
        assert_eq!((report.succeeded, report.lost), (1, 1), "{change}");
        let asked = shop.script.asked();
        assert_eq!(asked, ["check", "handle", "check"].map(|what| format!("{what} {first}")), "{change}");
        shop.sql("DELETE FROM user_bill").await;
    }
}

async fn source_5_7_5_check_handle_check(db: Db) {
    let shop = Shop::open(db).await;
    let (guards, _) = shop.start(guard().handle_timeout(std::time::Duration::from_secs(1))).await;
    let good = "2001 SUCCESS start=+-9 n=0 next=- every=- within=- manual=- remind=- told=-";
    let bad = "4000 FAIL start=+-9 n=1 next=+5 every=- within=- manual=- remind=- told=-";
    let both = ["check", "handle", "check"].as_slice();
    let table = [
        (Does::AlreadyDone, good, &["check"] as &[&str]),
        (Does::Succeeds, good, both),
        (Does::Understates, good, both),
        (Does::Boasts, bad, both),
        (Does::Fails, bad, both),
        (Does::CheckErrs, bad, &["check"]),
        (Does::HandleErrs, bad, both),
        (Does::Panics, bad, both),
        (Does::Hangs, bad, both),
    ];
    for (id, (does, after, asked)) in (1..).zip(table) {
        shop.script.will(id, does);
        shop.add(id, "FAIL", "err_status=4000 err_start_time=-9 err_retry_count=0").await;
        poll(&guards).await;
        assert_eq!(shop.state(id).await, after, "{does:?}");
        let wanted: Vec<_> = asked.iter().map(|what| format!("{what} {id}")).collect();
        assert_eq!(shop.script.asked(), wanted, "{does:?}");
    }
}

async fn source_5_7_6_failure_puts_off_and_then_hands_over(db: Db) {
    let shop = Shop::open(db).await;
    let (guards, table) = shop.start(guard().max_retry_count(3)).await;
    shop.add(1, "FAIL", "").await;
    assert_eq!(table.mark_abnormal(1).await.unwrap(), Marked::Changed);
    let story = [
        (0, 1, "4000 FAIL start=+0 n=1 next=+5 every=5 within=180 manual=- remind=- told=0"), // now + 5 × 1
        (4, 0, "4000 FAIL start=+0 n=1 next=+5 every=5 within=180 manual=- remind=- told=0"), // not due
        (1, 1, "4000 FAIL start=+0 n=2 next=+15 every=5 within=180 manual=- remind=- told=0"), // 5 + 5 × 2
        // The third is the last; without a mail server people cannot be told: 15 + 10 × 1.
        (10, 1, "4001 FAIL start=+0 n=3 next=- every=5 within=180 manual=4000 remind=+25 told=0"),
        (5, 0, "4001 FAIL start=+0 n=3 next=- every=5 within=180 manual=4000 remind=+25 told=0"),
    ];
    for (wait, handled, after) in story {
        shop.advance(wait);
        poll(&guards).await;
        assert_eq!(shop.state(1).await, after, "after {wait} s more");
        let asked = shop.script.asked().iter().filter(|asked| asked.starts_with("handle")).count();
        assert_eq!(asked, handled, "after {wait} s more");
    }
}

async fn source_5_7_6_a_retry_that_fails_after_the_timeout_hands_over(db: Db) {
    let shop = Shop::open(db).await;
    let (guards, _) = shop.start(guard().max_retry_count(100)).await;
    shop.add(1, "FAIL", "err_status=4000 err_start_time=-179").await;
    shop.add(2, "FAIL", "err_status=4000 err_start_time=-180").await;
    let report = poll(&guards).await;
    assert_eq!((report.again, report.manual, report.promoted), (1, 1, 0));
    assert_eq!(shop.state(1).await, "4000 FAIL start=+-179 n=1 next=+5 every=- within=- manual=- remind=- told=-");
    assert_eq!(shop.state(2).await, "4001 FAIL start=+-180 n=1 next=- every=- within=- manual=4000 remind=+10 told=-");
}

async fn source_5_7_6_the_rows_own_interval_and_timeout_win(db: Db) {
    let shop = Shop::open(db).await;
    let (guards, _) = shop.start(guard().max_retry_count(100)).await;
    let own = "err_status=4000 err_start_time=-20 err_retry_count=2 err_min_interval=7";
    shop.add(1, "FAIL", &format!("{own} err_timeout=21")).await;
    shop.add(2, "FAIL", &format!("{own} err_timeout=20")).await;
    poll(&guards).await;
    assert_eq!(shop.state(1).await, "4000 FAIL start=+-20 n=3 next=+21 every=7 within=21 manual=- remind=- told=-");
    assert_eq!(shop.state(2).await, "4001 FAIL start=+-20 n=3 next=- every=7 within=20 manual=4000 remind=+10 told=-");
}

async fn source_5_7_7_what_has_timed_out_is_promoted(db: Db) {
    let shop = Shop::open(db).await;
    let (guards, _) = shop.start(guard()).await;
    // Not due, so that they are not retried; 3 has another business status and is promoted, but nobody is told.
    shop.add(1, "FAIL", "err_status=4000 err_start_time=-180 err_next_retry_time=99 err_next_remind_staff_time=98")
        .await;
    shop.add(2, "FAIL", "err_status=4000 err_start_time=-179 err_next_retry_time=99").await;
    shop.add(3, "OTHER", "err_status=4000 err_start_time=-180 err_next_retry_time=99").await;
    shop.add(4, "FAIL", "err_status=4000 err_start_time=-20 err_next_retry_time=99 err_timeout=20").await;
    shop.add(5, "FAIL", "err_status=4000 err_start_time=-200 err_next_retry_time=99 err_timeout=201").await;
    shop.add(6, "FAIL", "err_status=2001 err_start_time=-200 err_next_retry_time=99").await;
    let report = poll(&guards).await;
    assert_eq!((report.promoted, report.told), (3, 2));
    let told = "every=- within=- manual=4000 remind=+10 told=-";
    let rest = "every=- within=- manual=- remind=- told=-";
    assert_eq!(shop.state(1).await, format!("4001 FAIL start=+-180 n=- next=- {told}"));
    assert_eq!(shop.state(2).await, format!("4000 FAIL start=+-179 n=- next=+99 {rest}"));
    assert_eq!(shop.state(3).await, format!("4001 OTHER start=+-180 n=- next=- {rest}"));
    assert_eq!(shop.state(4).await, "4001 FAIL start=+-20 n=- next=- every=- within=20 manual=4000 remind=+10 told=-");
    assert_eq!(shop.state(5).await, "4000 FAIL start=+-200 n=- next=+99 every=- within=201 manual=- remind=- told=-");
    assert_eq!(shop.state(6).await, format!("2001 FAIL start=+-200 n=- next=+99 {rest}"));
    assert!(shop.script.asked().is_empty());
}

async fn source_5_7_8_who_is_told_of(db: Db) {
    let shop = Shop::open(db).await;
    let (guards, _) = shop.start(guard()).await;
    let mut id = 0;
    let mut wanted = Vec::new();
    for code in ["NULL", "2000", "4000", "4001", "2001", "2002"] {
        for remind in ["NULL", "-1", "0", "1"] {
            for status in ["FAIL", "OTHER"] {
                id += 1;
                let rest = "err_start_time=-9 err_next_retry_time=60";
                shop.add(id, status, &format!("err_status={code} err_next_remind_staff_time={remind} {rest}")).await;
                if code == "4001" && matches!(remind, "NULL" | "-1") && status == "FAIL" {
                    wanted.push(id);
                }
            }
        }
    }
    let report = poll(&guards).await;
    assert_eq!(report.told, 2);
    for id in 1..=id {
        let told = shop.state(id).await.contains("manual=4000");
        assert_eq!(told, wanted.contains(&id), "{}", shop.state(id).await);
    }
}

async fn source_5_7_9_processing_successful(db: Db) {
    let shop = Shop::open(db).await;
    let (guards, table) = shop.start(guard()).await;
    for (id, code) in [(1, 4001), (2, 4000)] {
        let rest = "err_start_time=-9 err_retry_count=2 err_next_remind_staff_time=9 err_manual_notify_count=1";
        shop.add(id, "FAIL", &format!("err_status={code} {rest}")).await;
        table.processing_successful(id).await.unwrap();
        let after = "2002 SUCCESS start=+-9 n=2 next=- every=- within=- manual=4002 remind=+9 told=1";
        assert_eq!(shop.state(id).await, after);
        table.processing_successful(id).await.unwrap(); // twice is as good as once
        assert_eq!(shop.state(id).await, after);
    }
    poll(&guards).await;
    assert!(shop.script.asked().is_empty() && shop.state(2).await.starts_with("2002"));
    let e = table.processing_successful(9).await.unwrap_err();
    assert_eq!(e.to_string(), "no row 9 in user_bill");
}
