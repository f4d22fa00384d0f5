//! The hot statements go through the indexes that they were made for.

use redrive::NewTask;

use crate::harness::*;

layouts!(hot_statements_use_their_indexes_with_100_000_rows);

async fn hot_statements_use_their_indexes_with_100_000_rows(db: Db) {
    let me = node(&db.store).await;
    for batch in 0..20u64 {
        let tasks = (0..5_000).map(|n| {
            let method = if n % 10 == 0 { "m" } else { "other" };
            NewTask::new(method, &(batch, n)).unwrap().no_key().at(NOW + std::time::Duration::from_millis(n % 997))
        });
        db.store.insert(tasks.collect(), NOW).await.unwrap();
    }
    // Plans are made from statistics; and some rows are running, as in life.
    let analyze = match db.kind {
        Kind::Sqlite => "ANALYZE",
        Kind::Postgres => "ANALYZE retry_task",
        Kind::MySql => "ANALYZE TABLE retry_task",
    };
    assert!(!db.store.claim_due(&slices(), me, later(1), 10).await.unwrap().tasks.is_empty());
    let mut raw = Raw::connect(&db).await;
    for sql in db.for_each_table(analyze).await {
        _ = raw.sql(&sql).await;
    }
    let tables = db.tables("task").await;
    for (name, plan) in db.store.explain("m", later(1)).await.unwrap() {
        let plan = tables.iter().fold(plan, |plan, table| plan.replace(table.as_str(), "retry_task"));
        let by_due = matches!(name, "scan" | "rescue" | "claim due");
        let wanted = match (db.kind, by_due) {
            (Kind::Sqlite, true) => {
                "USING COVERING INDEX retry_task_scan (lane=? AND shard=? AND next_retry_time>? AND next_retry_time<?)"
            }
            (Kind::Sqlite, false) => "USING INTEGER PRIMARY KEY (rowid=?)",
            (Kind::Postgres, true) => "Index Scan using retry_task_scan",
            (Kind::Postgres, false) => "Index Scan using retry_task_pkey",
            (Kind::MySql, true) => "\"key\": \"retry_task_scan\"",
            (Kind::MySql, false) => "\"key\": \"PRIMARY\"",
        };
        let wanted = wanted.replace("COVERING INDEX", "INDEX");
        assert!(
            plan.replace("COVERING INDEX", "INDEX").contains(&wanted),
            "{name} on {:?} does not use its index:\n{plan}",
            db.kind
        );
        let whole = match db.kind {
            Kind::Sqlite if name == "rescue" => ["SCAN retry_task", "SCAN t"].as_slice(), // x is what was found there
            Kind::Sqlite => &["SCAN retry_task", "SCAN t", "SCAN x"],
            Kind::Postgres => &["Seq Scan on retry_task"],
            Kind::MySql => &[
                "\"table_name\": \"t\",\n      \"access_type\": \"ALL\"",
                "\"table_name\": \"x\",\n      \"access_type\": \"ALL\"",
            ],
        };
        for scan in whole {
            let bad = plan.lines().any(|line| line.trim() == *scan) || plan.contains(&format!("{scan} "));
            assert!(!bad, "{name} on {:?} reads the whole table:\n{plan}", db.kind);
        }
    }
}
