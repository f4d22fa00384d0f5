//! The nine columns: added by whoever comes first, refused clearly to whoever may not, and tables of every kind.

use redrive::guard::{BoxError, BusinessDatabase, Guard, GuardHandler, Guards, Marked, RowId};
use sqlx::Connection as _;

use crate::bills::{Shop, guard, poll};
use crate::harness::{Db, Kind, NOW, server_url, stores};

stores!(
    eight_nodes_start_at_once,
    without_the_right_to_alter_the_error_has_the_statements,
    columns_that_are_there_already_are_kept,
    ids_are_integers_text_or_uuids,
    names_that_are_reserved_words_and_values_of_other_types_work,
    a_pool_of_the_applications_own_and_redrives_own_database_work,
    datetimes_are_in_the_databases_local_time,
    an_entity_is_read_with_its_nine_columns,
);

async fn eight_nodes_start_at_once(db: Db) {
    let shop = Shop::open(db).await;
    let starts = (0..8).map(|_| shop.builder(guard().create_index(true)).start());
    let started = futures_util::future::join_all(starts).await;
    for guards in started {
        assert!(guards.unwrap().all()[0].inspect().await.unwrap().is_fine());
    }
}

async fn without_the_right_to_alter_the_error_has_the_statements(db: Db) {
    let shop = Shop::open(db).await;
    let said = shop.builder(guard().add_columns(false)).start().await.unwrap_err().to_string();
    let wanted = "has no err_status, err_start_time, err_retry_count, err_next_retry_time, err_min_interval, err_timeout, \
                  err_submit_manual_status, err_next_remind_staff_time, err_manual_notify_count (add_columns is off)";
    assert!(said.contains(wanted), "{said}");
    let user = format!("guest_{}", std::process::id());
    let url = match shop.kind {
        Kind::Sqlite => shop.url.replace("mode=rwc", "mode=ro"),
        Kind::Postgres => {
            let schema = shop.url.rsplit_once('=').unwrap().1;
            shop.sql(&format!(
                "DROP ROLE IF EXISTS {user}; CREATE ROLE {user} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {user}"
            ))
            .await;
            shop.sql(&format!("GRANT SELECT, UPDATE ON user_bill TO {user}")).await;
            shop.url.replace("postgres@", &format!("{user}@"))
        }
        Kind::MySql => {
            shop.sql(&format!("DROP USER IF EXISTS {user}; CREATE USER {user}")).await;
            shop.sql(&format!("GRANT SELECT, UPDATE ON user_bill TO {user}")).await;
            shop.url.replace("root@", &format!("{user}@"))
        }
    };
    let builder = Guards::builder(shop.db.store.clone()).clock(shop.clock.clone()).by_hand();
    let builder = builder.guard(guard(), &*url, shop.script.clone());
    let said = builder.start().await.unwrap_err().to_string();
    let denied = match shop.kind {
        Kind::Sqlite => "readonly database",
        Kind::Postgres => "must be owner of table user_bill",
        Kind::MySql => "ALTER command denied",
    };
    assert!(said.contains(denied), "{said}");
    // What it says is what someone else can run.
    let (_, statements) = said.split_once("start again:\n").unwrap();
    for statement in statements.split(";\n") {
        shop.sql(statement.trim_end_matches(';')).await;
    }
    let builder = Guards::builder(shop.db.store.clone()).clock(shop.clock.clone()).by_hand();
    builder.guard(guard(), &*url, shop.script.clone()).start().await.unwrap();
    if shop.kind == Kind::Postgres {
        shop.sql(&format!("DROP OWNED BY {user}; DROP ROLE {user}")).await;
    }
}

async fn columns_that_are_there_already_are_kept(db: Db) {
    let shop = Shop::open(db).await;
    let time = match shop.kind {
        Kind::Sqlite => "TEXT",
        Kind::Postgres => "timestamptz",
        Kind::MySql => "DATETIME(6)",
    };
    shop.sql(&format!("ALTER TABLE user_bill ADD COLUMN err_next_retry_time {time}")).await;
    shop.sql(&format!("ALTER TABLE user_bill ADD COLUMN err_start_time {time}")).await;
    shop.sql("ALTER TABLE user_bill ADD COLUMN err_status BIGINT NOT NULL DEFAULT 2000").await;
    let (guards, table) = shop.start(guard().max_retry_count(1)).await;
    shop.add(1, "FAIL", "").await;
    assert_eq!(table.mark_abnormal(1).await.unwrap(), Marked::Changed);
    assert_eq!(poll(&guards).await.manual, 1);
    let shown = table.show(1).await.unwrap();
    assert_eq!(shown.columns["err_status"], 4001);
    assert_eq!(shown.columns["err_start_time"].as_str().unwrap().len(), "2027-01-15 08:00:00".len());
}

/// Succeeds at once, for any id.
struct Any;

impl GuardHandler for Any {
    type Id = RowId;
    async fn check_status(&self, _: &RowId) -> Result<bool, BoxError> {
        Ok(true)
    }
    async fn handle(&self, _: &RowId) -> Result<bool, BoxError> {
        Err("is not needed".into())
    }
    fn manual_success_route(&self) -> String {
        String::new()
    }
}

async fn ids_are_integers_text_or_uuids(db: Db) {
    let shop = Shop::open(db).await;
    let uuid = "5f2b8a52-6d6e-4f0e-9a1e-0123456789ab";
    let bytes = if shop.kind == Kind::Postgres { "uuid" } else { "BINARY(16)" };
    let bytes = if shop.kind == Kind::Sqlite { "BLOB" } else { bytes };
    let hex = format!("x'{}'", uuid.replace('-', ""));
    let own = if shop.kind == Kind::Postgres { format!("'{uuid}'") } else { hex };
    let unsigned = if shop.kind == Kind::MySql { "BIGINT UNSIGNED" } else { "SMALLINT" };
    let kinds = [
        (unsigned, "7".to_owned(), RowId::Int(7)),
        ("INTEGER", "8".to_owned(), RowId::Int(8)),
        ("VARCHAR(40)", "'b-7'".to_owned(), RowId::from("b-7")),
        ("CHAR(10)", "'b-8'".to_owned(), RowId::from("b-8")),
        ("CHAR(36)", format!("'{uuid}'"), RowId::from(uuid)),
        (bytes, own, RowId::Uuid(uuid.parse().unwrap())),
    ];
    for (n, (kind, literal, id)) in kinds.into_iter().enumerate() {
        let name = format!("thing_{n}");
        shop.sql(&format!("CREATE TABLE {name} (id {kind} PRIMARY KEY, status INT)")).await;
        shop.sql(&format!("INSERT INTO {name} VALUES ({literal}, -1)")).await;
        let guard = Guard::table(&*name).status_field("status").success_value("1").fail_value(-1);
        let builder = Guards::builder(shop.db.store.clone()).clock(shop.clock.clone()).by_hand();
        let guards = builder.guard(guard, shop.database(), Any).start().await.unwrap();
        let table = guards.get(&name).unwrap();
        assert_eq!(table.mark_abnormal(id.to_string()).await.unwrap(), Marked::Changed, "{kind}");
        assert_eq!(table.show(&id).await.unwrap().not_scanned, [], "{kind}");
        assert_eq!(poll(&guards).await.succeeded, 1, "{kind}");
        let shown = table.show(&id).await.unwrap();
        assert_eq!((&shown.id, &shown.columns["err_status"], &shown.columns["status"]), (&id, &2001.into(), &1.into()));
        let page = guards.list(&redrive::guard::ListRequest::default()).await.unwrap();
        assert_eq!(page.total, 1, "{kind}");
    }
}

async fn names_that_are_reserved_words_and_values_of_other_types_work(db: Db) {
    let shop = Shop::open(db).await;
    let (open, close) = if shop.kind == Kind::MySql { ("`", "`") } else { ("\"", "\"") };
    let q = |name: &str| format!("{open}{name}{close}");
    let status = match shop.kind {
        Kind::Sqlite => "BOOLEAN",
        Kind::Postgres => {
            shop.sql("CREATE TYPE outcome AS ENUM ('0', '1')").await;
            "outcome"
        }
        Kind::MySql => "ENUM('0', '1')",
    };
    let table = format!(
        "CREATE TABLE {} ({} INT PRIMARY KEY, {} {status}, {} VARCHAR(9))",
        q("order"),
        q("key"),
        q("group"),
        q("user")
    );
    shop.sql(&table).await;
    shop.sql(&format!("INSERT INTO {} VALUES (1, '0', 'eve')", q("order"))).await;
    let guard =
        Guard::table("order").id_field("key").user_field("user").status_field("group").success_value(1).fail_value(0);
    let builder = Guards::builder(shop.db.store.clone()).clock(shop.clock.clone()).by_hand();
    let guards = builder.guard(guard.create_index(true), shop.database(), Any).start().await.unwrap();
    let table = guards.get("order").unwrap();
    assert_eq!(table.mark_abnormal_of(1, "eve").await.unwrap(), Marked::Changed);
    assert!(table.check_user_err("eve").await.is_err());
    assert_eq!(poll(&guards).await.succeeded, 1);
    table.check_user_err("eve").await.unwrap();
    table.processing_successful(1).await.unwrap();
}

async fn a_pool_of_the_applications_own_and_redrives_own_database_work(db: Db) {
    let shop = Shop::open(db).await;
    let pool: BusinessDatabase = match shop.kind {
        Kind::Sqlite => sqlx::SqlitePool::connect(&shop.url).await.unwrap().into(),
        Kind::Postgres => sqlx::PgPool::connect(&shop.url).await.unwrap().into(),
        Kind::MySql => sqlx::MySqlPool::connect(&shop.url).await.unwrap().into(),
    };
    shop.db.sql("CREATE TABLE user_bill (id INT PRIMARY KEY, user_id INT, status VARCHAR(9))").await;
    shop.db.sql("INSERT INTO user_bill VALUES (2, 1, 'FAIL')").await;
    shop.add(1, "FAIL", "").await;
    let builder = Guards::builder(shop.db.store.clone()).clock(shop.clock.clone()).by_hand();
    let own = BusinessDatabase::of(&shop.db.store);
    let guards = builder.guard(guard(), pool, Any).guard(guard().service_name("own"), own, Any).start().await.unwrap();
    for (n, table) in guards.all().iter().enumerate() {
        assert_eq!(table.mark_abnormal(n as i64 + 1).await.unwrap(), Marked::Changed);
    }
    let succeeded: Vec<_> =
        guards.poll_once().await.into_iter().map(|report| (report.succeeded, report.error)).collect();
    assert_eq!(succeeded, [(1, None), (1, None)]);
}

/// SQLite has this machine's zone, which a test cannot choose; that is tried with a process of its own.
async fn datetimes_are_in_the_databases_local_time(db: Db) {
    let shop = Shop::open(db).await;
    shop.add(1, "FAIL", "").await;
    let (zone, wanted) = match shop.kind {
        Kind::Sqlite => return sqlite_follows_tz(&shop).await,
        Kind::Postgres => ("Asia/Shanghai", "2027-01-15 16:00:00"),
        Kind::MySql => ("+08:00", "2027-01-15 16:00:00"),
    };
    let builder = Guards::builder(shop.db.store.clone()).clock(shop.clock.clone()).by_hand();
    let database = BusinessDatabase::from(&*shop.url).time_zone(zone);
    let guards = builder.guard(guard().max_retry_count(9), database, shop.script.clone()).start().await.unwrap();
    let table = guards.all().remove(0);
    assert_eq!(table.mark_abnormal(1).await.unwrap(), Marked::Changed);
    assert_eq!(table.show(1).await.unwrap().columns["err_start_time"], wanted);
    for _ in 0..3 {
        assert_eq!(poll(&guards).await.again, 1, "it is due when it says so");
        shop.advance(20);
    }
    // Without a zone of its own it is the server's: for PostgreSQL that of the database, if it has one.
    if shop.kind == Kind::Postgres {
        let mut c = sqlx::PgConnection::connect(&server_url(Kind::Postgres)).await.unwrap();
        let role = format!("tz_{}", std::process::id());
        let schema = shop.url.rsplit_once('=').unwrap().1;
        for sql in [
            format!("DROP ROLE IF EXISTS {role}"),
            format!("CREATE ROLE {role} LOGIN SUPERUSER"),
            format!("ALTER ROLE {role} SET TimeZone = 'Asia/Tokyo'"),
            format!("UPDATE {schema}.user_bill SET err_status = NULL"),
        ] {
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut c).await.unwrap();
        }
        let url = shop.url.replace("postgres@", &format!("{role}@"));
        let builder = Guards::builder(shop.db.store.clone()).clock(redrive::Clock::manual(NOW)).by_hand();
        let guards = builder.guard(guard(), &*url, shop.script.clone()).start().await.unwrap();
        let table = guards.all().remove(0);
        assert_eq!(table.mark_abnormal(1).await.unwrap(), Marked::Changed);
        assert_eq!(table.show(1).await.unwrap().columns["err_start_time"], "2027-01-15 17:00:00");
        drop(guards);
        let drop_role = format!("DROP ROLE {role}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(drop_role)).execute(&mut c).await.unwrap();
    }
}

async fn sqlite_follows_tz(shop: &Shop) {
    let (_guards, table) = shop.start(guard()).await;
    let program = crate::nodes::program("guard_node");
    let ended = std::process::Command::new(program)
        .args(["--mark", "1", &shop.db.url, &shop.url])
        .env("TZ", "XYZ-8")
        .output()
        .unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    let shown = table.show(1).await.unwrap().columns["err_start_time"].as_str().unwrap().to_owned();
    assert_eq!(said.trim(), format!("marked as abnormal {shown}"));
    // Eight hours ahead of what UTC has now.
    let ahead = "SELECT abs(strftime('%s', err_start_time) - strftime('%s', 'now') - 8 * 3600) < 60 FROM user_bill";
    assert_eq!(shop.sql(ahead).await, Some(1), "{shown}");
}

#[derive(redrive::guard::ErrColumns)]
struct UserBill {
    id: i64,
    #[column("status")]
    state: Option<String>,
    err: redrive::guard::ErrColumns,
}

async fn an_entity_is_read_with_its_nine_columns(db: Db) {
    let shop = Shop::open(db).await;
    let (_guards, table) = shop.start(guard()).await;
    shop.add(1, "FAIL", "").await;
    shop.add(2, "SUCCESS", "").await;
    assert_eq!(table.mark_abnormal(1).await.unwrap(), Marked::Changed);
    shop.set(1, "err_next_retry_time=30 err_manual_notify_count=3").await;
    let sql = "SELECT * FROM user_bill ORDER BY id";
    let bills: Vec<UserBill> = match &mut shop.raw().await {
        crate::harness::Raw::Sqlite(c) => sqlx::query_as(sql).fetch_all(c).await.unwrap(),
        crate::harness::Raw::Postgres(c) => sqlx::query_as(sql).fetch_all(c).await.unwrap(),
        crate::harness::Raw::MySql(c) => sqlx::query_as(sql).fetch_all(c).await.unwrap(),
    };
    let [one, two] = &*bills else { panic!("two bills") };
    let shown = table.show(1).await.unwrap().columns;
    let mut as_json = serde_json::to_value(&one.err).unwrap();
    for (name, value) in as_json.as_object_mut().unwrap() {
        assert_eq!(&shown[name], value, "{name}");
    }
    assert_eq!((one.id, one.state.as_deref(), one.err.err_manual_notify_count), (1, Some("FAIL"), Some(3)));
    assert_eq!((two.id, &two.err), (2, &redrive::guard::ErrColumns::default()));
}
