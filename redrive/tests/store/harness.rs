//! A fresh database for each test, and what tests say often.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::store::{Claimed, Due, LaneShards, Layout, Registration, Retention, Settle, Settled, Slice};
use redrive::{
    Enqueued, Failure, Lane, NewTask, NodeNumber, Outcome, SHARDS, Store, StoreOptions, Task, TaskId, Timestamp, settle,
};
use sqlx::{AssertSqlSafe, Connection as _, Row as _};

/// Stamps tests for each database: `stores!(a_test, another_test);` for `async fn a_test(db: Db)`.
macro_rules! stores {
    ($($test:ident),* $(,)?) => {
        mod sqlite { crate::harness::stamp!([super] fresh, Sqlite, $($test),*); }
        mod postgres { crate::harness::stamp!([super] fresh, Postgres, $($test),*); }
        mod mysql { crate::harness::stamp!([super] fresh, MySql, $($test),*); }
    };
}
pub(crate) use stores;

/// The same, on each database with either layout.
#[allow(unused_macros, reason = "not every suite has it")]
macro_rules! layouts {
    ($($test:ident),* $(,)?) => {
        crate::harness::stores!($($test),*);
        mod monthly {
            mod sqlite { crate::harness::stamp!([super super] monthly, Sqlite, $($test),*); }
            mod postgres { crate::harness::stamp!([super super] monthly, Postgres, $($test),*); }
            mod mysql { crate::harness::stamp!([super super] monthly, MySql, $($test),*); }
        }
    };
}
#[allow(unused_imports, reason = "not every suite has it")]
pub(crate) use layouts;

/// The same on each database, and with monthly tables on one of them: for what is above the store, whose own suite has both on all three.
#[allow(unused_macros, reason = "not every suite has it")]
macro_rules! stores_and_months {
    ($($test:ident),* $(,)?) => {
        crate::harness::stores!($($test),*);
        mod monthly {
            mod postgres { crate::harness::stamp!([super super] monthly, Postgres, $($test),*); }
        }
    };
}
#[allow(unused_imports, reason = "not every suite has it")]
pub(crate) use stores_and_months;

macro_rules! stamp {
    ([$($up:ident)+] $make:ident, $kind:ident) => {};
    ([$($up:ident)+] $make:ident, $kind:ident, $test:ident $(, $more:ident)*) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            $($up::)+$test(crate::harness::Db::$make(crate::harness::Kind::$kind).await).await;
        }
        crate::harness::stamp!([$($up)+] $make, $kind $(, $more)*);
    };
}
pub(crate) use stamp;

/// The time of all tests: nothing here waits for a clock.
pub const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

pub fn later(seconds: u64) -> Timestamp {
    NOW + Duration::from_secs(seconds)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Sqlite,
    Postgres,
    MySql,
}

/// A database of one's own.
pub struct Db {
    pub kind: Kind,
    pub url: String,
    pub store: Store,
    _dir: Option<tempfile::TempDir>,
}

static COUNTER: AtomicU32 = AtomicU32::new(0);

pub fn server_url(kind: Kind) -> String {
    let variable = if kind == Kind::Postgres { "REDRIVE_TEST_POSTGRES" } else { "REDRIVE_TEST_MYSQL" };
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run scripts/test, or `eval \"$(scripts/db env)\"` first, or leave this store out with --skip")
    })
}

/// An empty database, and its URL.
pub async fn fresh_url(kind: Kind) -> (String, Option<tempfile::TempDir>) {
    if kind == Kind::Sqlite {
        let dir = tempfile::tempdir().unwrap();
        return (format!("sqlite://{}", dir.path().join("redrive.db").display()), Some(dir));
    }
    (fresh_url_on(kind, &server_url(kind)).await, None)
}

/// An empty database on this server, and its URL.
pub async fn fresh_url_on(kind: Kind, server: &str) -> String {
    let name = format!("t{}_{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
    match kind {
        #[cfg(feature = "postgres")]
        Kind::Postgres => {
            let mut c = sqlx::PgConnection::connect(server).await.unwrap();
            sqlx::raw_sql(AssertSqlSafe(format!("DROP SCHEMA IF EXISTS {name} CASCADE; CREATE SCHEMA {name}")))
                .execute(&mut c)
                .await
                .unwrap();
            format!("{server}?options[search_path]={name}")
        }
        #[cfg(feature = "mysql")]
        Kind::MySql => {
            let mut c = sqlx::MySqlConnection::connect(server).await.unwrap();
            sqlx::raw_sql(AssertSqlSafe(format!("DROP DATABASE IF EXISTS {name}; CREATE DATABASE {name}")))
                .execute(&mut c)
                .await
                .unwrap();
            let (base, _) = server.rsplit_once('/').unwrap();
            format!("{base}/{name}")
        }
        other => unreachable!("no {name} for {other:?} on {server}"),
    }
}

pub fn options() -> StoreOptions {
    let mut options = StoreOptions::default();
    options.max_connections = 8;
    options
}

impl Db {
    pub async fn fresh(kind: Kind) -> Self {
        let (url, dir) = fresh_url(kind).await;
        Self { _dir: dir, ..Self::at(kind, url, options()).await }
    }

    /// The same with monthly tables.
    pub async fn monthly(kind: Kind) -> Self {
        let (url, dir) = fresh_url(kind).await;
        let mut options = options();
        options.layout = Some(Layout::Monthly { tables: 2 });
        let db = Self { _dir: dir, ..Self::at(kind, url, options).await };
        db.store.rotate(&Retention::default(), NOW).await.unwrap();
        // Some tests go by the real time, others by NOW: the tables of both are read.
        let mut raw = Raw::connect(&db).await;
        raw.sql("UPDATE redrive_table SET is_read = 1 WHERE kind = 'task'").await.unwrap();
        let store = db.another().await;
        Self { store, ..db }
    }

    pub fn is_monthly(&self) -> bool {
        self.store.layout() != Layout::Single
    }

    /// A database that is there already; whoever made it removes it.
    pub async fn at(kind: Kind, url: String, options: StoreOptions) -> Self {
        let store = Store::open_with(&url, options).await.unwrap();
        Self { kind, url, store, _dir: None }
    }

    /// Another process, as it were.
    pub async fn another(&self) -> Store {
        Store::open_with(&self.url, options()).await.unwrap()
    }

    /// Runs SQL as someone else; the first column of the first row, if there is one. What it says of `retry_task` or
    /// `retry_archive` is done with each of their tables, and the results are added up.
    pub async fn sql(&self, sql: &str) -> Option<i64> {
        moment().await; // who asks may ask again and again
        let mut raw = Raw::connect(self).await;
        let mut sum = None;
        for sql in self.for_each_table(sql).await {
            let n = raw.sql(&sql).await.unwrap();
            sum = sum.map(|sum: i64| sum + n.unwrap_or(0)).or(n);
        }
        sum
    }

    pub async fn for_each_table(&self, sql: &str) -> Vec<String> {
        let is_word = |name: &str| sql.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name);
        for (kind, single) in [("task", "retry_task"), ("archive", "retry_archive")] {
            if self.is_monthly() && is_word(single) {
                let mut all = self.tables(kind).await;
                all.push(single.to_owned());
                return all.iter().map(|name| sql.replace(single, name)).collect();
            }
        }
        vec![sql.to_owned()]
    }

    /// The monthly tables of a kind, by their names.
    pub async fn tables(&self, kind: &str) -> Vec<String> {
        let mut raw = Raw::connect(self).await;
        let sql =
            format!("SELECT month * 100 + bucket FROM redrive_table WHERE kind = '{kind}' AND month > 0 ORDER BY 1");
        let numbers = raw.all(&sql).await;
        let name = |n: i64| match kind {
            "task" => format!("retry_task_{}_{}", n / 100, n % 100),
            _ => format!("retry_archive_{}", n / 100),
        };
        numbers.into_iter().map(name).collect()
    }

    pub async fn count(&self, table: &str) -> i64 {
        self.sql(&format!("SELECT COUNT(*) FROM {table}")).await.unwrap()
    }
}

/// Before what is waited for is looked at again: whoever only spins takes the core from those who do it.
pub async fn moment() {
    _ = tokio::time::timeout(Duration::from_millis(3), std::future::pending::<()>()).await;
}

/// A plain connection with its own transactions: an application beside redrive.
pub enum Raw {
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::SqliteConnection),
    #[cfg(feature = "postgres")]
    Postgres(sqlx::PgConnection),
    #[cfg(feature = "mysql")]
    MySql(sqlx::MySqlConnection),
}

macro_rules! each {
    ($raw:expr, $c:ident => $body:expr) => {
        match $raw {
            #[cfg(feature = "sqlite")]
            Raw::Sqlite($c) => $body,
            #[cfg(feature = "postgres")]
            Raw::Postgres($c) => $body,
            #[cfg(feature = "mysql")]
            Raw::MySql($c) => $body,
        }
    };
}

impl Raw {
    pub async fn connect(db: &Db) -> Self {
        match db.kind {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite => Self::Sqlite(sqlx::SqliteConnection::connect(&db.url).await.unwrap()),
            #[cfg(feature = "postgres")]
            Kind::Postgres => Self::Postgres(sqlx::PgConnection::connect(&db.url).await.unwrap()),
            #[cfg(feature = "mysql")]
            Kind::MySql => Self::MySql(sqlx::MySqlConnection::connect(&db.url).await.unwrap()),
            #[allow(unreachable_patterns, reason = "not where one is tested alone")]
            other => unreachable!("{other:?} is not built in"),
        }
    }

    pub async fn sql(&mut self, sql: &str) -> sqlx::Result<Option<i64>> {
        let sql = AssertSqlSafe(sql.to_owned());
        each!(self, c => {
            let row = sqlx::raw_sql(sql).fetch_optional(&mut *c).await?;
            Ok(row.and_then(|row| row.try_get::<i64, _>(0).ok()))
        })
    }

    /// The first column of all rows.
    pub async fn all(&mut self, sql: &str) -> Vec<i64> {
        let sql = AssertSqlSafe(sql.to_owned());
        each!(self, c => {
            let rows = sqlx::raw_sql(sql).fetch_all(&mut *c).await.unwrap();
            rows.iter().map(|row| row.try_get::<i64, _>(0).or_else(|_| row.try_get::<i32, _>(0).map(i64::from)).unwrap()).collect()
        })
    }

    pub async fn begin(&mut self) {
        let begin = match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => "BEGIN IMMEDIATE",
            #[allow(unreachable_patterns, reason = "where SQLite is tested alone")]
            _ => "BEGIN",
        };
        self.sql(begin).await.unwrap();
    }

    /// Switches `innodb_snapshot_isolation`, which MariaDB has, and has on from 11.8. False where there is no such thing.
    pub async fn snapshot_isolation(&mut self, on: bool) -> bool {
        self.sql(&format!("SET SESSION innodb_snapshot_isolation = {}", u8::from(on))).await.is_ok()
    }

    pub async fn commit(&mut self) {
        self.sql("COMMIT").await.unwrap();
    }

    pub fn connection(&mut self) -> redrive::store::Connection<'_> {
        each!(self, c => (&mut *c).into())
    }
}

pub fn new(n: u64) -> NewTask {
    NewTask::new("m", &n).unwrap()
}

pub async fn add(store: &Store, new: NewTask) -> TaskId {
    let answers = store.insert(vec![new], NOW).await.unwrap();
    assert!(!answers[0].existed);
    answers[0].id
}

pub async fn add_many(store: &Store, n: u64) -> Vec<TaskId> {
    let answers = store.insert((0..n).map(new).collect(), NOW).await.unwrap();
    answers.iter().map(|a: &Enqueued| a.id).collect()
}

pub async fn node(store: &Store) -> NodeNumber {
    let who =
        Registration { name: "test".into(), build: "1".into(), methods: vec!["m".into()], ..Registration::default() };
    store.register(&who, NOW).await.unwrap()
}

/// All shards of the lane of method `m`.
pub fn slices() -> Vec<Slice> {
    slices_of("m")
}

pub fn slices_of(method: &str) -> Vec<Slice> {
    (0..SHARDS).map(|shard| Slice { lane: Lane::of(method), shard, from: Timestamp::EPOCH }).collect()
}

/// The lane of `m`, with all its shards.
pub fn lanes() -> Vec<LaneShards> {
    vec![(Lane::of("m"), u64::MAX)]
}

pub async fn claim_all(store: &Store, node: NodeNumber, now: Timestamp) -> Claimed {
    store.claim_due(&slices(), node, now, 10_000).await.unwrap()
}

/// One task, inserted and claimed.
pub async fn claimed(store: &Store, new: NewTask) -> (Task, NodeNumber) {
    let node = node(store).await;
    add(store, new).await;
    let mut claimed = claim_all(store, node, NOW).await;
    assert_eq!(claimed.tasks.len(), 1);
    (claimed.tasks.pop().unwrap(), node)
}

pub fn due_of(task: &Task) -> Due {
    Due { id: task.id, version: task.version, due: task.due, priority: task.priority, lane: task.lane, business: 0 }
}

pub fn timeout() -> Outcome {
    Outcome::Failed(Failure::retry("timeout", "no answer"))
}

pub async fn end(store: &Store, task: &Task, outcome: Outcome, now: Timestamp) -> Settled {
    let change = settle(task, &outcome, now, 0.0);
    store.settle(&[Settle::new(task.clone(), change)], now).await.unwrap()[0]
}

/// What makes the database refuse the dead letter of task 13, and what ends that.
pub fn refusal(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Sqlite => (
            "CREATE TRIGGER refuse BEFORE INSERT ON retry_dead WHEN NEW.params_json = '13' \
             BEGIN SELECT RAISE(ABORT, 'refused'); END",
            "DROP TRIGGER refuse",
        ),
        Kind::Postgres => (
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             IF NEW.params_json = '13' THEN RAISE EXCEPTION 'refused'; END IF; RETURN NEW; END $$; \
             CREATE TRIGGER refuse BEFORE INSERT ON retry_dead FOR EACH ROW EXECUTE FUNCTION refuse()",
            "DROP TRIGGER refuse ON retry_dead",
        ),
        Kind::MySql => (
            "CREATE TRIGGER refuse BEFORE INSERT ON retry_dead FOR EACH ROW IF NEW.params_json = '13' THEN \
             SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused'; END IF",
            "DROP TRIGGER refuse",
        ),
    }
}

/// What is logged on this thread.
pub struct Log {
    written: Arc<Mutex<Vec<u8>>>,
    _listening: tracing::subscriber::DefaultGuard,
}

impl Log {
    pub fn start(filter: &str) -> Self {
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let writer = Writer(written.clone());
        let filter = tracing_subscriber::EnvFilter::new(filter);
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false);
        // While there is only one who listens, a place in the code that another thread comes to first asks that thread alone, and is
        // silent ever after.
        std::mem::forget(tracing::Dispatch::new(tracing_subscriber::registry()));
        let log = log.with_writer(move || writer.clone()).finish();
        Self { written, _listening: tracing::subscriber::set_default(log) }
    }

    /// All of it.
    pub fn end(self) -> String {
        String::from_utf8(self.written.lock().unwrap().clone()).unwrap()
    }
}

#[derive(Clone)]
struct Writer(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
