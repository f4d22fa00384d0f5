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
        let by_lane = matches!(name, "scan of lanes" | "rescue");
        let by_due = by_lane || matches!(name, "scan" | "claim due");
        let wanted = match (db.kind, by_due) {
            (Kind::Sqlite, true) if by_lane => "USING INDEX retry_task_scan (lane=?)",
            (Kind::Sqlite, true) => {
                "USING COVERING INDEX retry_task_scan (lane=? AND shard=? AND next_retry_time>? AND next_retry_time<?)"
            }
            (Kind::Sqlite, false) => "USING INTEGER PRIMARY KEY (rowid=?)",
            (Kind::Postgres, true) if name == "rescue" => "Index Scan on retry_task_scan", // it reads all that is due: a bitmap will do
            (Kind::Postgres, true) => "Index Scan using retry_task_scan",
            (Kind::Postgres, false) => "Index Scan using retry_task_pkey",
            (Kind::MySql, true) => "\"key\": \"retry_task_scan\"",
            // MySQL 9 says so of one row that it has found by a unique key while it planned.
            (Kind::MySql, false) if name == "get" && plan.contains("json_schema_version") => {
                "Rows fetched before execution"
            }
            (Kind::MySql, false) => "\"key\": \"PRIMARY\"",
        };
        let wanted = wanted.replace("COVERING INDEX", "INDEX");
        let plan = plan.replace("COVERING INDEX", "INDEX").replace("\"index_name\":", "\"key\":"); // of MySQL 9
        assert!(plan.contains(&wanted), "{name} on {:?} does not use its index:\n{plan}", db.kind);
        let whole = match db.kind {
            Kind::Sqlite => ["SCAN retry_task", "SCAN t", "SCAN x"].as_slice(),
            Kind::Postgres => &["Seq Scan on retry_task"],
            // The forms of MariaDB and MySQL 8, and of MySQL 9.
            Kind::MySql => &[
                "\"table_name\": \"t\", \"access_type\": \"ALL\",",
                "\"table_name\": \"x\", \"access_type\": \"ALL\",",
                "\"operation\": \"Table scan on t\",",
                "\"operation\": \"Table scan on x\",",
                "\"index_access_type\": \"index_scan\",", // all of an index
            ],
        };
        let line = plan.split_whitespace().collect::<Vec<_>>().join(" ") + " ";
        for scan in whole {
            assert!(!line.contains(&format!("{scan} ")), "{name} on {:?} reads the whole table:\n{plan}", db.kind);
        }
    }
}
