//! Opening, migrating, and refusing what cannot be used.

use std::time::Duration;

use redrive::{Context, Engine, Error, Store, StoreOptions, Verdict};

use crate::harness::*;

layouts!(
    several_nodes_may_migrate_at_once,
    opening_again_changes_nothing,
    an_interrupted_migration_is_finished,
    a_newer_schema_that_is_compatible_is_used,
    a_newer_schema_that_is_not_is_refused,
    without_migration_an_empty_database_is_refused,
    a_database_that_cannot_be_reached_says_so_without_the_password,
    a_read_only_database_changes_nothing,
    hosts_are_tried_in_their_order,
    few_connections_are_enough,
);

async fn several_nodes_may_migrate_at_once(db: Db) {
    let (url, _dir) = fresh_url(db.kind).await;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let url = url.clone();
        calls.spawn(async move {
            Store::open_with(&url, options()).await.unwrap().insert(vec![new(1)], NOW).await.unwrap()[0]
        });
    }
    let answers = calls.join_all().await;
    assert_eq!(answers.iter().filter(|a| !a.existed).count(), 1);
}

async fn opening_again_changes_nothing(db: Db) {
    let id = add(&db.store, new(1)).await;
    db.store.close().await;
    assert!(db.another().await.get(id).await.unwrap().is_some());
}

async fn an_interrupted_migration_is_finished(db: Db) {
    db.sql("DROP TABLE redrive_barrier").await;
    db.sql("DELETE FROM redrive_schema").await;
    let store = db.another().await;
    add(&store, new(1)).await;
    assert_eq!(db.count("redrive_barrier").await, 0);
}

async fn a_newer_schema_that_is_compatible_is_used(db: Db) {
    db.sql("UPDATE redrive_schema SET version = 99, compatible_with = 1").await;
    add(&db.another().await, new(1)).await;
}

async fn a_newer_schema_that_is_not_is_refused(db: Db) {
    db.sql("UPDATE redrive_schema SET version = 99, compatible_with = 98").await;
    let said = Store::open_with(&db.url, options()).await.unwrap_err();
    assert!(matches!(said, Error::Schema(_)));
    assert!(said.to_string().contains("version 99") && said.to_string().contains("upgrade redrive"), "{said}");
}

async fn without_migration_an_empty_database_is_refused(db: Db) {
    let (url, _dir) = fresh_url(db.kind).await;
    let mut options = options();
    options.migrate = false;
    let said = Store::open_with(&url, options.clone()).await.unwrap_err().to_string();
    assert!(said.contains("run `redrive migrate`"), "{said}");
    Store::open_with(&db.url, options).await.unwrap();
}

fn quick() -> StoreOptions {
    let mut options = options();
    options.connect_timeout = Duration::from_secs(2);
    options.retry_for = Duration::ZERO;
    options
}

async fn a_database_that_cannot_be_reached_says_so_without_the_password(db: Db) {
    // Bound and never accepted from: the connection opens and nothing answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let wrong: Vec<String> = match db.kind {
        Kind::Sqlite => vec!["sqlite:///no/such/directory/x.db".into()],
        Kind::Postgres => vec![
            "postgres://me:hunter2@127.0.0.1:1/x".into(),
            format!("postgres://me:hunter2@127.0.0.1:{port}/x"),
            format!(
                "{}?password=hunter2&options[search_path]=x",
                server_url(db.kind).replace("/postgres", "/no_such_database")
            ),
        ],
        Kind::MySql => vec![
            "mysql://me:hunter2@127.0.0.1:1/x".into(),
            format!("mysql://me:hunter2@127.0.0.1:{port}/x"),
            server_url(db.kind).replace("root@", "root:hunter2@"),
        ],
    };
    for url in wrong {
        let said = Store::open_with(&url, quick()).await.unwrap_err();
        assert!(matches!(said, Error::Database { .. }), "{said:?}");
        let said = format!("{said} {said:?}");
        assert!(said.contains("opening ") && !said.contains("hunter2"), "{said}");
    }
}

async fn a_read_only_database_changes_nothing(db: Db) {
    let store = match db.kind {
        Kind::Sqlite => {
            let url = format!("{}?mode=ro", db.url);
            let mut options = quick();
            options.migrate = false;
            let said = Store::open_with(&url, options).await.unwrap_err().to_string();
            assert!(said.contains("readonly"), "{said}");
            return;
        }
        Kind::Postgres => {
            Store::open_with(&format!("{}&options[default_transaction_read_only]=on", db.url), quick()).await
        }
        // MySQL has no read-only connections; a user without rights is the nearest.
        Kind::MySql => {
            let name = format!("ro{}", std::process::id());
            db.sql(&format!("DROP USER IF EXISTS {name}@'127.0.0.1'")).await;
            db.sql(&format!("CREATE USER {name}@'127.0.0.1'")).await;
            db.sql(&format!("GRANT SELECT ON *.* TO {name}@'127.0.0.1'")).await;
            Store::open_with(&db.url.replace("root@", &format!("{name}@")), quick()).await
        }
    };
    let said = store.unwrap_err().to_string();
    assert!(said.contains("read-only") || said.contains("denied"), "{said}");
}

async fn hosts_are_tried_in_their_order(db: Db) {
    if db.kind == Kind::Sqlite {
        let said = Store::open("oracle://h/d").await.unwrap_err().to_string();
        assert!(said.contains("unknown scheme \"oracle\""), "{said}");
        return; // a file has no hosts
    }
    let (start, rest) = db.url.split_once('@').unwrap();
    let store = Store::open_with(&format!("{start}@127.0.0.1:1,{rest}"), options()).await.unwrap();
    add(&store, new(1)).await;
}

/// Whoever listens for wake-ups does not take the only one.
async fn few_connections_are_enough(db: Db) {
    for n in 0..3 {
        let mut few = options();
        few.max_connections = n;
        let store = Store::open_with(&db.url, few).await.unwrap();
        let engine = Engine::builder(store).register("m", async |_: Context, _: u64| Ok::<(), Verdict>(()));
        let engine = engine.start().await.unwrap();
        let listeners = "SELECT COUNT(*) FROM pg_stat_activity \
                         WHERE query = 'LISTEN \"redrive_' || md5(current_schema()) || '\"'";
        let work = async {
            while db.kind == Kind::Postgres && db.sql(listeners).await != Some(1) {}
            engine.enqueue_many((0..10).map(new)).await.unwrap();
            while db.count("retry_task").await > 0 {}
        };
        tokio::time::timeout(Duration::from_secs(60), work).await.expect("it stands still");
        engine.stop().await;
        while db.kind == Kind::Postgres && db.sql(listeners).await != Some(0) {}
    }
}
