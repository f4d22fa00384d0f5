use std::sync::Arc;
use std::time::Duration;

use redrive::{
    Backoff, Business, Failure, Jitter, Lane, NewTask, Notify, OnCrash, OnExhausted, Policy, Status, TaskId,
};

use crate::harness::*;

layouts!(
    a_task_is_read_back_as_it_was_written,
    every_field_survives_the_database,
    text_keeps_its_case_accents_and_emoji,
    many_in_one_go_are_all_there,
    params_of_a_mebibyte_fit,
    bad_input_is_refused_and_changes_nothing,
    a_task_may_be_written_down_as_running,
    a_first_inline_failure_is_recorded,
    ids_of_several_processes_never_meet,
    turns_that_were_used_today_are_kept_and_others_removed,
    a_turn_that_was_removed_while_nobody_used_it_is_made_anew,
    an_unreadable_policy_does_not_lose_the_task,
    readable_views_show_times_and_words,
    source_2_the_columns_have_their_names_and_their_values,
    a_table_that_is_locked_does_not_break_a_batch_into_its_tasks,
    what_a_server_refuses_for_now_is_tried_again,
);

/// On PostgreSQL, where an insert waits 50 ms for a lock. Each part of the batch would wait for the table as long as all of it does.
async fn a_table_that_is_locked_does_not_break_a_batch_into_its_tasks(db: Db) {
    if db.kind != Kind::Postgres {
        return;
    }
    add(&db.store, new(0)).await; // so that the store has its turn
    let mut raw = Raw::connect(&db).await;
    raw.begin().await;
    raw.sql("LOCK TABLE redrive_key IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let hold = async {
        _ = tokio::time::timeout(Duration::from_secs(2), std::future::pending::<()>()).await;
        raw.commit().await;
    };
    let (answers, ()) = tokio::join!(db.store.insert((1..=1_000).map(new).collect(), NOW), hold);
    assert_eq!(answers.unwrap().len(), 1_000);
    let mut parts = 0;
    for sql in db.for_each_table("SELECT COUNT(DISTINCT CAST(xmin AS TEXT)) FROM retry_task").await {
        parts = parts.max(Raw::connect(&db).await.sql(&sql).await.unwrap().unwrap_or(0));
    }
    assert!(parts <= 2, "the batch was written in {parts} transactions");
}

/// MySQL: group replication that did not take a transaction (3100), or rolled it back (3101), and a server that takes no more prepared
/// statements (1461).
async fn what_a_server_refuses_for_now_is_tried_again(db: Db) {
    if db.kind != Kind::MySql {
        return;
    }
    let mut options = options();
    options.retry_for = Duration::from_millis(300);
    let store = redrive::Store::open_with(&db.url, options).await.unwrap();
    for code in [3100, 3101, 1461] {
        let trigger = format!(
            "CREATE TRIGGER refuse BEFORE INSERT ON redrive_key FOR EACH ROW \
             SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'not now'"
        );
        db.sql(&trigger).await;
        let e = store.insert((0..4).map(new).collect(), NOW).await.unwrap_err();
        assert!(e.is_transient(), "{code}: {e}");
        assert_eq!(e.to_string().contains("raise max_prepared_stmt_count"), code == 1461, "{e}");
        db.sql("DROP TRIGGER refuse").await;
        store.insert((0..4).map(|n| new(n).key(format!("{code}-{n}"))).collect(), NOW).await.unwrap();
    }
}

async fn a_task_is_read_back_as_it_was_written(db: Db) {
    let id = add(&db.store, new(7)).await;
    let task = db.store.get(id).await.unwrap().unwrap();
    assert_eq!(
        (&*task.method, &*task.params, task.status, task.due, task.created_at),
        ("m", "7", Status::Pending, NOW, NOW)
    );
    assert_eq!((task.attempts, task.version, task.locked_by), (0, 0, None));
    assert!(task.key.unwrap().starts_with("m:"));
    assert_eq!(*task.policy, Policy::default());
}

async fn every_field_survives_the_database(db: Db) {
    let policy = Policy {
        max_attempts: None,
        max_duration: Some(Duration::from_secs(3600)),
        deadline: Some(later(7200)),
        backoff: Backoff::linear(Duration::from_millis(1500), Duration::from_secs(60)),
        jitter: Jitter::Equal,
        timeout: Some(Duration::from_secs(10)),
        max_retry_after: Duration::from_secs(60),
        max_postponed: Duration::from_secs(3600),
        retry_for: vec!["timeout".into()],
        no_retry_for: vec!["http.404".into()],
        success_if: Some("result.code == 200".into()),
        on_exhausted: OnExhausted::Escalate,
        notify: Some(Notify::Failures(3)),
        on_success: Some("paid".into()),
        on_final_failure: Some("refund".into()),
        keep: true,
        max_crashes: 2,
        on_crash: OnCrash::Dead,
    };
    let new = NewTask::new("pay", &("a", 1))
        .unwrap()
        .policy(policy.clone())
        .key("k")
        .business("order", "42")
        .at(later(60))
        .priority(-5)
        .part("example.org")
        .dedup_for(Duration::from_secs(86_400))
        .traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .created_by("alice");
    let id = add(&db.store, new).await;
    let t = db.store.get(id).await.unwrap().unwrap();
    assert_eq!(*t.policy, policy);
    assert_eq!(
        (t.key.as_deref(), t.due, t.priority, t.lane),
        (Some("k"), later(60), -5, Lane::part("pay", "example.org"))
    );
    assert_eq!(t.business, Some(Business { kind: "order".into(), id: "42".into() }));
    assert_eq!((t.dedup_for, t.created_by.as_deref()), (Duration::from_secs(86_400), Some("alice")));
    assert!(t.traceparent.unwrap().ends_with("-01"));
    assert_eq!(t.params, r#"["a",1]"#);
}

async fn text_keeps_its_case_accents_and_emoji(db: Db) {
    let keys = ["Key", "key", "kéy", "key ", "🦀", "🦞", "支付", "k'--\"\\", "<b>%_"];
    for key in keys {
        let id = add(&db.store, NewTask::new("m", &key).unwrap().key(key).business("类型🦀", key)).await;
        let task = db.store.get(id).await.unwrap().unwrap();
        assert_eq!(
            (task.key.as_deref(), task.business.map(|b| (b.kind, b.id))),
            (Some(key), Some(("类型🦀".into(), key.into())))
        );
    }
    assert_eq!(db.count("retry_task").await, keys.len() as i64);
    // And in the text of an error, which takes another way into the database.
    let task = claim_all(&db.store, node(&db.store).await, NOW).await.tasks.pop().unwrap();
    let said = "connexion refusée 🦀 \"quoted\" \\ back\nline\u{1}";
    end(&db.store, &task, redrive::Outcome::Failed(Failure::retry("Kind🦀", said)), NOW).await;
    let error = db.store.get(task.id).await.unwrap().unwrap().last_error.unwrap();
    assert_eq!((error.kind.as_str(), &*error.message), ("Kind🦀", said));
}

async fn many_in_one_go_are_all_there(db: Db) {
    // More than one statement on every database, keyed and not.
    let tasks = (0..3_000).map(|n| if n % 3 == 0 { new(n).no_key() } else { new(n) }).collect();
    let answers = db.store.insert(tasks, NOW).await.unwrap();
    assert!(answers.iter().all(|a| !a.existed));
    assert_eq!((db.count("retry_task").await, db.count("redrive_key").await), (3_000, 2_000));
    for (n, answer) in answers.iter().enumerate().step_by(500) {
        assert_eq!(db.store.get(answer.id).await.unwrap().unwrap().params, n.to_string(), "answers are in order");
    }
}

async fn params_of_a_mebibyte_fit(db: Db) {
    let big = "x".repeat(1024 * 1024 - 2);
    let id = add(&db.store, NewTask::new("m", &big).unwrap()).await;
    assert_eq!(db.store.get(id).await.unwrap().unwrap().params.len(), 1024 * 1024);
}

async fn bad_input_is_refused_and_changes_nothing(db: Db) {
    let policy = |p: Policy| new(1).policy(p);
    let bad = [
        ("method", NewTask::new("m".repeat(501), &1).unwrap()),
        ("method", NewTask::new("", &1).unwrap()),
        ("method", NewTask::new("a\0b", &1).unwrap()),
        ("key", new(1).key("k".repeat(256))),
        ("key", new(1).key("\0")),
        ("business_id", new(1).business("order", "x".repeat(101))),
        ("business_type", new(1).business("x".repeat(51), "1")),
        ("params", NewTask::new("m", &"x".repeat(1024 * 1024)).unwrap()),
        ("policy.max_attempts", policy(Policy { max_attempts: Some(0), ..Policy::default() })),
        ("policy.backoff", policy(Policy { backoff: Backoff::fixed(Duration::ZERO), ..Policy::default() })),
        ("policy.max_duration", policy(Policy { max_duration: Some(Duration::MAX), ..Policy::default() })),
        ("created_by", new(1).created_by("x".repeat(101))),
    ];
    for (field, task) in bad {
        let said = db.store.insert(vec![new(0), task], NOW).await.unwrap_err().to_string();
        assert!(said.contains(&format!("tasks[1].{field}")), "{field} is missing in: {said}");
    }
    let said =
        db.store.insert(vec![NewTask::new("m", &"x".repeat(2_000_000)).unwrap()], NOW).await.unwrap_err().to_string();
    assert!(said.contains("2000002 bytes, the limit is 1048576"), "{said}");
    assert!(NewTask::from_json("m", "{not json").is_err());
    assert_eq!((db.count("retry_task").await, db.count("redrive_key").await), (0, 0));
}

async fn a_task_may_be_written_down_as_running(db: Db) {
    let node = node(&db.store).await;
    let id = add(&db.store, new(1).running_on(node)).await;
    let task = db.store.get(id).await.unwrap().unwrap();
    assert_eq!((task.status, task.locked_by, task.locked_at), (Status::Running, Some(node), Some(NOW)));
    assert!(claim_all(&db.store, node, NOW).await.tasks.is_empty());
    end(&db.store, &task, redrive::Outcome::Done, NOW).await;
    assert_eq!(db.count("retry_task").await, 0);
}

async fn a_first_inline_failure_is_recorded(db: Db) {
    let id = add(&db.store, new(1).after_failure(Failure::retry("timeout", "no answer"))).await;
    let t = db.store.get(id).await.unwrap().unwrap();
    assert_eq!((t.attempts, t.first_failed_at, t.history.len()), (1, Some(NOW), 1));
    assert_eq!(t.last_error.unwrap().message, "no answer");
}

async fn ids_of_several_processes_never_meet(db: Db) {
    let (a, b) = (db.another().await, db.another().await);
    let tasks = || (0..500).map(|n| new(n).no_key().business("one", "shard")).collect::<Vec<_>>();
    let (one, two, three) = tokio::join!(a.insert(tasks(), NOW), b.insert(tasks(), NOW), db.store.insert(tasks(), NOW));
    let ids: std::collections::HashSet<_> =
        [one, two, three].into_iter().flat_map(|r| r.unwrap()).map(|a| a.id).collect();
    assert_eq!(ids.len(), 1_500);
    assert_eq!(db.count("retry_task").await, 1_500);
}

/// Whoever made them.
async fn turns_that_were_used_today_are_kept_and_others_removed(db: Db) {
    let hours = |n: u64| TaskId::first_at(NOW - Duration::from_secs(3600 * n));
    for (value, kept) in [
        (TaskId::from_i64(0), false),
        (hours(23), true),
        (hours(25), false),
        (hours(23).in_month(), true),
        (hours(25).in_month(), false),
    ] {
        let store = db.another().await;
        let name = format!("insert/1{value}/1");
        db.sql(&format!("INSERT INTO redrive_counter (name, value) VALUES ('{name}', {value})")).await;
        store.insert(vec![new(1)], NOW).await.unwrap();
        let left = db.sql(&format!("SELECT COUNT(*) FROM redrive_counter WHERE name = '{name}'")).await;
        assert_eq!(left == Some(1), kept || db.kind == Kind::Sqlite, "{value}: SQLite has no turns");
    }
}

async fn a_turn_that_was_removed_while_nobody_used_it_is_made_anew(db: Db) {
    let turns = async || db.sql("SELECT COUNT(*) FROM redrive_counter WHERE name LIKE 'insert/%'").await.unwrap();
    add(&db.store, new(1)).await;
    let before = turns().await;
    for (n, days) in [(2, 2), (3, 4)] {
        db.store.insert(vec![new(n)], later(days * 86_400)).await.unwrap();
        assert_eq!(turns().await, before, "the new one takes the place of the old one");
    }
    db.sql("DELETE FROM redrive_counter WHERE name LIKE 'insert/%'").await;
    db.store.insert(vec![new(4)], later(6 * 86_400)).await.unwrap();
    assert_eq!(db.count("retry_task").await, 4);
}

async fn an_unreadable_policy_does_not_lose_the_task(db: Db) {
    let policy = Policy { max_attempts: Some(3), timeout: Some(Duration::from_secs(5)), ..Policy::default() };
    let id = add(&db.store, new(1).policy(Arc::new(policy))).await;
    db.sql("UPDATE retry_task SET policy = '{\"from_the_future\": 1}'").await;
    let task = db.store.get(id).await.unwrap().unwrap();
    assert_eq!((task.policy.max_attempts, task.policy.timeout), (Some(3), None));
}

async fn readable_views_show_times_and_words(db: Db) {
    let (task, _) = claimed(&db.store, new(1)).await;
    let year = match db.kind {
        Kind::Sqlite => "created_at LIKE '2027-01-15T08:00:00%'",
        Kind::Postgres => "created_at = '2027-01-15T08:00:00Z'::timestamptz",
        Kind::MySql => "created_at = CONVERT_TZ('2027-01-15 08:00:00', '+00:00', @@session.time_zone)",
    };
    let sql = format!(
        "SELECT COUNT(*) FROM retry_task_readable WHERE status = 'RUNNING' AND backoff_strategy = 'EXPONENTIAL' AND {year}"
    );
    assert_eq!(db.sql(&sql).await, Some(1));
    assert_eq!(db.count("redrive_node_readable").await, 1);
    end(&db.store, &task, redrive::Outcome::Undecodable("?".into()), NOW).await;
    assert_eq!(db.sql("SELECT COUNT(*) FROM retry_dead_readable WHERE dead_reason = 'undecodable'").await, Some(1));
}

/// Whoever knows the columns of the document finds them, with SQL.
async fn source_2_the_columns_have_their_names_and_their_values(db: Db) {
    let second = Duration::from_secs;
    let policy = Policy {
        max_attempts: Some(5),
        max_duration: Some(second(3600)),
        deadline: Some(later(7200)),
        backoff: Backoff::linear(second(3), second(60)),
        ..Policy::default()
    };
    let id = add(&db.store, new(7).policy(policy).key("k").business("order", "42").at(later(60))).await;
    let (now, due, deadline) = (NOW.as_millis(), later(60).as_millis(), later(7200).as_millis());
    let wanted = [
        format!("id = {} AND task_key = 'k' AND method_name = 'm' AND params_json = '7'", id.as_i64()),
        "status = 0 AND attempt_count = 0 AND max_attempts = 5 AND backoff_strategy = 'LINEAR'".into(),
        format!("next_retry_time = {due} AND deadline = {deadline} AND max_retry_duration = 3600000"),
        format!("created_at = {now} AND updated_at = {now} AND first_failed_at IS NULL"),
        "last_error_msg IS NULL AND last_error_time IS NULL".into(),
        "version = 0 AND locked_by = 0 AND locked_at = 0".into(),
        "business_id = '42' AND business_type = 'order'".into(),
    ];
    for wanted in wanted {
        assert_eq!(db.count(&format!("retry_task WHERE {wanted}")).await, 1, "{wanted}");
    }
    for (n, backoff, name) in [(8, Backoff::fixed(second(3)), "'FIXED'"), (9, Backoff::list([second(1)]), "'LIST'")] {
        add(&db.store, new(n).policy(Policy { backoff, ..Policy::default() })).await;
        let wanted = format!("params_json = '{n}' AND backoff_strategy = {name}");
        assert_eq!(db.count(&format!("retry_task WHERE {wanted}")).await, 1, "{wanted}");
    }
    add(&db.store, new(1).after_failure(Failure::retry("timeout", "no answer"))).await;
    let failed = "attempt_count = 1 AND last_error_msg = 'no answer' AND last_error_kind = 'timeout'";
    let times = format!("first_failed_at = {now} AND last_error_time = {now}");
    assert_eq!(db.count(&format!("retry_task WHERE {failed} AND {times}")).await, 1);
}
