//! Tables that come and go with the months.

use std::collections::BTreeSet;
use std::time::Duration;

use redrive::store::{Keep, KeyWalk, Layout, Retention, Settle, TaskFilter};
use redrive::{NewTask, Outcome, Store, Task, TaskId, Timestamp, settle};

use sqlx::Connection as _;

use crate::harness::*;

stores!(
    a_year_goes_by,
    a_month_begins_without_upkeep,
    a_scan_reads_no_table_that_it_need_not,
    one_key_on_both_sides_of_midnight_is_one_task,
    single_becomes_monthly_while_nodes_run,
    a_process_that_knows_nothing_yet_is_served,
    what_comes_late_is_read_after_all,
    what_is_written_while_its_table_goes_is_not_lost,
    a_backup_that_reads_for_long_holds_nothing_up,
    the_number_of_tables_is_fixed,
    a_callers_transaction_finds_its_table,
    lists_go_from_month_to_month,
    the_archive_goes_month_by_month,
    what_is_old_goes_if_asked,
    people_see_all_tables_as_one,
    a_table_that_the_user_may_not_see_is_not_forgotten,
);

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

const MONTHLY: Layout = Layout::Monthly { tables: 2 };

/// A database with monthly tables, as it is on a day.
async fn on(db: &Db, day: &str) {
    while !db.store.go_monthly(2, at(day)).await.unwrap().is_empty() {}
    db.store.rotate(&Retention::default(), at(day)).await.unwrap();
}

async fn insert(store: &Store, new: NewTask, now: Timestamp) -> TaskId {
    store.insert(vec![new], now).await.unwrap()[0].id
}

/// Runs what is due to its end.
async fn work(db: &Db, now: Timestamp) -> Vec<Task> {
    let me = node(&db.store).await;
    let claimed = db.store.claim_due(&slices(), me, now, 10_000).await.unwrap();
    let done = |task: &Task| Settle::new(task.clone(), settle(task, &Outcome::Done, now, 0.0));
    db.store.settle(&claimed.tasks.iter().map(done).collect::<Vec<_>>(), now).await.unwrap();
    claimed.tasks
}

fn months_of(tables: &[String]) -> Vec<String> {
    tables.iter().map(|t| t.split('_').nth(2).unwrap().to_owned()).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Every month a thousand tasks come and end, and one stays for more than four months.
async fn a_year_goes_by(db: Db) {
    let start = at("2027-01-10T12:00:00Z");
    on(&db, "2027-01-10T12:00:00Z").await;
    let day = Duration::from_secs(24 * 3600);
    let patient = insert(&db.store, new(999_999).delay(day * 130), start).await;
    let (mut ended, mut made, mut dropped, mut kept) = (Vec::new(), BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for today in 0..365u32 {
        let now = start + day * today;
        let rotated = db.store.rotate(&Retention::default(), now).await.unwrap();
        made.extend(rotated.made);
        dropped.extend(rotated.dropped);
        kept.extend(rotated.kept);
        let new_ones = (0..3u64).map(|i| new(u64::from(today) * 10 + i).delay(day)).collect();
        db.store.insert(new_ones, now).await.unwrap();
        ended.extend(work(&db, now).await.into_iter().map(|task| task.id));
        if today == 129 {
            assert!(db.store.get(patient).await.unwrap().is_some(), "it waits");
            assert!(
                db.tables("task").await.contains(&"retry_task_202701_1".into())
                    || kept.iter().any(|t| t.contains("202701"))
            );
        }
    }
    assert_eq!((ended.len(), db.count("retry_task").await), (3 * 364 + 1, 3), "none is lost, none runs twice");
    assert!(ended.contains(&patient));
    assert_eq!(ended.iter().collect::<BTreeSet<_>>().len(), ended.len());
    assert!(kept.iter().all(|table| table.starts_with("retry_task_202701")), "{kept:?}");
    assert_eq!(kept.len(), 1, "only the table of the task that waited");
    // Of 2027-01 to 2028-02 all were made but the first two, which were there; the last five are left.
    let task_tables = |tables: &BTreeSet<String>| tables.iter().filter(|t| t.starts_with("retry_task")).count();
    assert_eq!((task_tables(&made), task_tables(&dropped)), (2 * 12, 2 * 9));
    assert_eq!(months_of(&db.tables("task").await), ["202710", "202711", "202712", "202801", "202802"]);
}

/// Nobody has made the tables of the month: the first enqueue does, and it is found.
async fn a_month_begins_without_upkeep(db: Db) {
    on(&db, "2027-01-15T00:00:00Z").await;
    let spring = at("2027-05-01T00:00:00Z");
    let id = insert(&db.store, new(1), spring).await;
    assert!(db.tables("task").await.iter().any(|t| t.starts_with("retry_task_202705")));
    let another = db.another().await;
    assert_eq!(another.scan(&slices(), spring, 10).await.unwrap()[0].id, id);
    // The next month's are there, but not read: the first to write there says so, and others look.
    on(&db, "2027-05-31T12:00:00Z").await;
    let june = at("2027-06-01T00:00:00Z");
    let id = insert(&another, new(2), june).await;
    assert_eq!(another.get(id).await.unwrap().unwrap().id, id);
    assert_eq!(db.store.get(id).await.unwrap().unwrap().id, id);
    assert_eq!(work(&db, june).await.len(), 2);
}

/// What a store asks its database.
async fn statements<T>(work: impl Future<Output = T>) -> (T, String) {
    let log = Log::start("redrive::sql=trace");
    let result = work.await;
    (result, log.end())
}

/// Source 3: of 8 nodes each reads one table of each live month, 2 in all; of 9 nodes both, 4 in all.
async fn a_scan_reads_no_table_that_it_need_not(db: Db) {
    on(&db, "2026-12-20T00:00:00Z").await;
    on(&db, "2027-01-15T00:00:00Z").await;
    let now = at("2027-01-15T00:00:00Z");
    let read = async |nodes: u8| {
        let ours: Vec<_> = slices().into_iter().filter(|slice| slice.shard % nodes == 0).collect();
        let (found, said) = statements(db.store.scan(&ours, now, 10)).await;
        assert!(found.unwrap().is_empty());
        let mut tables = db.tables("task").await;
        tables.push("retry_task ".into());
        tables.into_iter().filter(|table| said.contains(table.as_str())).collect::<Vec<_>>()
    };
    assert_eq!(read(8).await, ["retry_task_202612_0", "retry_task_202701_0"]);
    let four = ["retry_task_202612_0", "retry_task_202612_1", "retry_task_202701_0", "retry_task_202701_1"];
    assert_eq!(read(9).await, four);
    // In February December is not read any more, and not while it has a task.
    let task = insert(&db.store, new(1).delay(Duration::from_secs(90 * 24 * 3600)), at("2026-12-31T00:00:00Z")).await;
    on(&db, "2027-02-15T00:00:00Z").await;
    let january = db.tables("task").await.into_iter().filter(|t| t.contains("202701") || t.contains("202702"));
    let with_it = january.chain([format!("retry_task_202612_{}", task.shard() % 2)]).collect::<BTreeSet<_>>();
    assert_eq!(read(1).await.into_iter().collect::<BTreeSet<_>>(), with_it);
    db.store.cancel(task, at("2027-02-15T00:00:00Z")).await.unwrap();
    on(&db, "2027-02-15T00:00:00Z").await;
    assert_eq!(months_of(&read(1).await), ["202701", "202702"]);
}

async fn one_key_on_both_sides_of_midnight_is_one_task(db: Db) {
    on(&db, "2027-01-31T23:00:00Z").await;
    let other = db.another().await;
    let tasks = || (0..1_000).map(|n| new(n).key(format!("k{n}"))).collect::<Vec<_>>();
    let (before, after) = (at("2027-01-31T23:59:59.999Z"), at("2027-02-01T00:00:00Z"));
    let (a, b) = tokio::join!(db.store.insert(tasks(), before), other.insert(tasks(), after));
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_eq!(db.count("retry_task").await, 1_000);
    for (a, b) in a.iter().zip(&b) {
        assert!(a.id == b.id && a.existed != b.existed, "one of them was first");
    }
    assert_eq!(work(&db, after).await.len(), 1_000);
    assert_eq!((db.count("retry_task").await, db.count("redrive_key").await), (0, 0));
}

async fn single_becomes_monthly_while_nodes_run(db: Db) {
    let (old, me) = (add(&db.store, new(1)).await, node(&db.store).await);
    let held = claim_all(&db.store, me, NOW).await.tasks.pop().unwrap();
    let there = add(&db.store, new(2)).await;
    // It was there before anyone spoke of months: as a node of an earlier version.
    db.sql("UPDATE redrive_node SET layout_seen = 0").await;
    let other = db.another().await;
    let waits_for = other.go_monthly(2, NOW).await.unwrap();
    assert_eq!(waits_for.iter().map(|n| n.number).collect::<Vec<_>>(), [me]);
    assert!(!add(&other, new(3)).await.is_monthly(), "it is announced, not switched on");
    assert_eq!(db.sql("SELECT compatible_with FROM redrive_schema").await, Some(3), "older binaries are kept out");
    db.store.beat(me).await.unwrap();
    assert!(db.store.nodes().await.unwrap()[0].knows_months);
    assert!(other.go_monthly(2, NOW).await.unwrap().is_empty());
    assert_eq!((other.layout(), db.store.layout()), (MONTHLY, MONTHLY));
    let new_one = add(&other, new(4)).await;
    assert!(new_one.is_monthly());
    // All are found, the one that was held is settled, and nothing was moved.
    assert!(end(&db.store, &held, timeout(), NOW).await != redrive::store::Settled::Lost);
    db.store.beat(me).await.unwrap();
    let found: BTreeSet<TaskId> = work(&db, later(3600)).await.iter().map(|task| task.id).collect();
    assert!(found.is_superset(&[old, there, new_one].into()) && found.len() == 4, "{found:?}");
    db.store.rotate(&Retention::default(), NOW).await.unwrap();
    let (_, said) = statements(db.store.scan(&slices(), later(1), 10)).await;
    assert!(!said.contains("retry_task x"), "the single table is empty: it is not read any more");
}

/// It was started before the change and has not looked since: it goes on with the single table.
async fn a_process_that_knows_nothing_yet_is_served(db: Db) {
    let unaware = db.another().await;
    on(&db, "2027-01-15T08:00:00Z").await;
    let me = node(&db.store).await;
    let id = add(&unaware, new(1)).await;
    assert!(!id.is_monthly());
    db.store.rotate(&Retention::default(), NOW).await.unwrap();
    assert_eq!(db.store.claim_due(&slices(), me, NOW, 10).await.unwrap().tasks[0].id, id);
    // What others write into months it finds by the id, and by a scan from its next beat on.
    let monthly = add(&db.store, new(2)).await;
    assert_eq!(unaware.get(monthly).await.unwrap().unwrap().id, monthly);
    assert_eq!(unaware.layout(), MONTHLY);
}

async fn what_comes_late_is_read_after_all(db: Db) {
    on(&db, "2027-01-15T00:00:00Z").await;
    let late = insert(&db.store, new(1), at("2027-01-15T00:00:00Z")).await;
    work(&db, at("2027-01-15T00:00:00Z")).await;
    let stale = db.another().await;
    on(&db, "2027-03-15T00:00:00Z").await;
    let now = at("2027-03-15T00:00:00Z");
    // `stale` has not heard that January is not read any more.
    let id = insert(&stale, new(2), late.made_at()).await;
    assert!(db.store.scan(&slices(), now, 10).await.unwrap().is_empty());
    db.store.rotate(&Retention::default(), now).await.unwrap();
    assert_eq!(db.store.scan(&slices(), now, 10).await.unwrap()[0].id, id);
}

async fn what_is_written_while_its_table_goes_is_not_lost(db: Db) {
    on(&db, "2027-01-15T00:00:00Z").await;
    let stale = db.another().await;
    let gone = insert(&db.store, new(1), at("2027-01-15T00:00:00Z")).await;
    work(&db, at("2027-01-15T00:00:00Z")).await;
    on(&db, "2027-09-15T00:00:00Z").await;
    assert!(db.tables("task").await.iter().all(|table| !table.contains("202701")));
    assert_eq!(db.store.get(gone).await.unwrap(), None);
    assert_eq!(stale.get(gone).await.unwrap_or(None), None);
    let id = insert(&stale, new(2), at("2027-01-15T00:00:00Z")).await;
    assert_eq!(db.store.get(id).await.unwrap().unwrap().id, id);
    assert_eq!(work(&db, at("2027-09-15T00:00:00Z")).await[0].id, id);
}

/// It has read everything, and its transaction is open.
async fn a_backup_that_reads_for_long_holds_nothing_up(db: Db) {
    on(&db, "2027-01-15T00:00:00Z").await;
    let mut backup = Raw::connect(&db).await;
    if db.kind != Kind::Sqlite {
        backup.begin().await;
        for what in ["retry_task_202701_0", "retry_task_readable"] {
            backup.sql(&format!("SELECT COUNT(*) FROM {what}")).await.unwrap();
        }
    }
    let id = insert(&db.store, new(1), at("2027-05-01T00:00:00Z")).await;
    assert_eq!(db.store.get(id).await.unwrap().unwrap().id, id);
    let later = at("2027-09-01T00:00:00Z");
    let rotated = db.store.rotate(&Retention::default(), later).await.unwrap();
    assert_eq!(rotated.dropped.contains(&"retry_task_202701_0".into()), db.kind == Kind::Sqlite);
    assert_eq!(work(&db, later).await.len(), 1);
    if db.kind != Kind::Sqlite {
        backup.commit().await;
        let rotated = db.store.rotate(&Retention::default(), later).await.unwrap();
        assert!(rotated.dropped.contains(&"retry_task_202701_0".into()), "{rotated:?}");
    }
    assert_eq!(db.sql("SELECT COUNT(*) FROM retry_task_readable").await, Some(0));
}

async fn the_number_of_tables_is_fixed(db: Db) {
    on(&db, "2027-01-15T00:00:00Z").await;
    for tables in [0, 3, 65] {
        assert!(db.store.go_monthly(tables, NOW).await.unwrap_err().to_string().contains("tables"));
    }
    let mut back = options();
    back.layout = Some(Layout::Single);
    let said = Store::open_with(&db.url, back).await.unwrap_err().to_string();
    assert!(said.contains("cannot be undone"), "{said}");
}

async fn a_callers_transaction_finds_its_table(db: Db) {
    on(&db, "2027-01-15T00:00:00Z").await;
    let spring = at("2027-05-01T00:00:00Z");
    for commits in [false, true] {
        let mut raw = Raw::connect(&db).await;
        raw.begin().await;
        let answers = db.store.insert_in(raw.connection(), vec![new(1), new(2)], spring).await.unwrap();
        raw.sql(if commits { "COMMIT" } else { "ROLLBACK" }).await.unwrap();
        assert_eq!(db.store.get(answers[0].id).await.unwrap().is_some(), commits);
    }
    assert_eq!(db.store.scan(&slices(), spring, 10).await.unwrap().len(), 2);
}

async fn lists_go_from_month_to_month(db: Db) {
    let single = add(&db.store, new(0)).await;
    on(&db, "2027-01-15T08:00:00Z").await;
    let mut ids = vec![single];
    for month in ["2027-02", "2027-03", "2027-04"] {
        for n in 0..4 {
            ids.push(
                insert(&db.store, new(n).key(format!("{month} {n}")), at(&format!("{month}-0{}T00:00:00Z", n + 1)))
                    .await,
            );
        }
    }
    ids.reverse();
    let (mut seen, mut filter) = (Vec::new(), TaskFilter::default());
    loop {
        let page = db.store.list(&filter, 3).await.unwrap();
        let Some(last) = page.last() else { break };
        filter.after = Some(last.id);
        seen.extend(page.iter().map(|task| task.id));
    }
    assert_eq!(seen, ids, "newest first, whatever the table");
    let march = TaskFilter {
        created_from: Some(at("2027-03-01T00:00:00Z")),
        created_before: Some(at("2027-04-02T00:00:00Z")),
        ..TaskFilter::default()
    };
    assert_eq!(db.store.list(&march, 100).await.unwrap().len(), 5);
    // Dead letters of both kinds are in one table.
    for id in &ids {
        db.store.fail(*id, at("2027-05-01T00:00:00Z")).await.unwrap();
    }
    assert_eq!(db.store.dead(&march.clone().into(), 100).await.unwrap().len(), 5);
    let before = TaskFilter { created_before: march.created_from, ..TaskFilter::default() };
    assert_eq!(db.store.dead(&before.into(), 100).await.unwrap().len(), 5);
}

async fn the_archive_goes_month_by_month(db: Db) {
    on(&db, "2027-01-15T00:00:00Z").await;
    let mut ids = Vec::new();
    for month in 1..=6 {
        let now = at(&format!("2027-0{month}-15T00:00:00Z"));
        on(&db, &now.to_string()).await;
        let id = insert(&db.store, new(month), now).await;
        db.store.cancel(id, now).await.unwrap();
        ids.push(id);
    }
    // By now January's and February's are more than 90 days old; March's is dropped when all of it is.
    let listed = db.store.archive(&Default::default(), 10).await.unwrap();
    assert_eq!(listed.iter().rev().map(|entry| entry.task.id).collect::<Vec<_>>(), ids[2..]);
    assert_eq!(db.count("retry_archive").await, 4);
    assert_eq!(db.tables("archive").await.len(), 5, "March to July");
}

async fn what_is_old_goes_if_asked(db: Db) {
    let day = Duration::from_secs(24 * 3600);
    let (task, gone) = claimed(&db.store, new(1).key("k").dedup_for(day)).await;
    end(&db.store, &task, Outcome::Done, NOW).await;
    db.store.retire(gone).await.unwrap();
    let ids = [add(&db.store, new(2)).await, add(&db.store, new(3)).await];
    db.store.cancel(ids[0], NOW).await.unwrap();
    db.store.fail(ids[1], NOW).await.unwrap();
    let waits = add(&db.store, new(4).key("waits")).await;
    let (mut walk, mut keep) = (KeyWalk::default(), Retention::default());
    let mut sweep = async |keep: &Retention, days| {
        let swept = db.store.sweep_old(keep, &mut walk, NOW + day * days).await.unwrap();
        (swept.archived, swept.dead, swept.keys, swept.nodes)
    };
    assert_eq!(sweep(&keep, 0).await, (0, 0, 0, 0));
    assert_eq!(sweep(&keep, 2).await, (0, 0, 1, 0), "the key that outlived its task");
    assert_eq!(sweep(&keep, 89).await, (0, 0, 0, 1));
    assert_eq!(sweep(&keep, 91).await, (1, 0, 0, 0), "dead letters wait for people");
    keep.keep_dead = Keep::For(day * 30);
    assert_eq!(sweep(&keep, 91).await, (0, 1, 0, 0));
    assert_eq!((db.count("retry_dead").await, db.count("retry_archive").await), (0, 1), "that is written down");
    assert!(db.store.get(waits).await.unwrap().is_some() && db.count("redrive_key").await == 1);
}

async fn people_see_all_tables_as_one(db: Db) {
    add(&db.store, new(1)).await;
    on(&db, "2027-01-15T08:00:00Z").await;
    add(&db.store, new(2)).await;
    insert(&db.store, new(3), at("2027-02-15T08:00:00Z")).await;
    assert_eq!(db.sql("SELECT COUNT(*) FROM retry_task_readable WHERE status = 'PENDING'").await, Some(3));
}

/// On MySQL the catalogue hides a table on which the user has no rights.
async fn a_table_that_the_user_may_not_see_is_not_forgotten(db: Db) {
    if db.kind != Kind::MySql {
        return;
    }
    let now = db.store.now().await.unwrap();
    while !db.store.go_monthly(2, now).await.unwrap().is_empty() {}
    db.store.rotate(&Retention::default(), now).await.unwrap();
    let name = db.url.rsplit_once('/').unwrap().1.to_owned();
    let user = format!("hidden_{name}");
    let hidden = db.tables("task").await.pop().unwrap();
    let mut raw = Raw::connect(&db).await;
    raw.sql(&format!("CREATE USER {user}@'%' IDENTIFIED BY 'x'")).await.unwrap();
    let mut grants = sqlx::MySqlConnection::connect(&db.url).await.unwrap();
    let all: Vec<String> = sqlx::query_scalar(
        "SELECT CAST(table_name AS CHAR) FROM information_schema.tables WHERE table_schema = DATABASE()",
    )
    .fetch_all(&mut grants)
    .await
    .unwrap();
    for table in all.iter().filter(|table| **table != hidden) {
        raw.sql(&format!("GRANT ALL ON {name}.{table} TO {user}@'%'")).await.unwrap();
    }
    let (_, host) = db.url.split_once('@').unwrap();
    let mut options = options();
    options.migrate = false;
    let store = Store::open_with(&format!("mysql://{user}:x@{host}"), options).await.unwrap();
    _ = store.rotate(&Retention::default(), now).await; // it may fail for want of rights
    let known = format!("SELECT COUNT(*) FROM redrive_table WHERE name = '{hidden}'");
    assert_eq!(raw.sql(&known).await.unwrap(), Some(1));
    // One that is gone is forgotten.
    raw.sql("INSERT INTO redrive_table (name, kind, month, bucket, is_read, created_at) VALUES ('retry_task_190001_0', 'task', 190001, 0, 0, 1)").await.unwrap();
    db.store.rotate(&Retention::default(), now).await.unwrap();
    assert_eq!(
        raw.sql("SELECT COUNT(*) FROM redrive_table WHERE name = 'retry_task_190001_0'").await.unwrap(),
        Some(0)
    );
    raw.sql(&format!("DROP USER {user}@'%'")).await.unwrap();
}
