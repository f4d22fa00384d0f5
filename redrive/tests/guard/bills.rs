//! A business table in a database of its own, a scripted handler, and what tests say often.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::Clock;
use redrive::guard::{
    BoxError, BusinessDatabase, Guard, GuardHandler, GuardedTable, Guards, GuardsBuilder, PollReport,
};
use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use crate::harness::{Db, Kind, NOW, Raw, fresh_url};

pub const ROUTE: &str = "/api/user/admin/manual-bill-success";
pub const SERVICE: &str = "异常处理示例";

/// What becomes of a row when it is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// The first check says that it has succeeded.
    AlreadyDone,
    /// `handle` puts it right.
    Succeeds,
    /// `handle` says that it puts it right, but it does not.
    Boasts,
    /// `handle` puts it right, but says that it has not.
    Understates,
    Fails,
    CheckErrs,
    HandleErrs,
    Panics,
    Hangs,
    /// Puts it right when it is told to go on.
    Late,
}

/// A handler that does as it is told, and writes down what it was asked.
#[derive(Default)]
pub struct Script {
    does: Mutex<HashMap<i64, Does>>,
    done: Mutex<HashSet<i64>>,
    asked: Mutex<Vec<String>>,
    handling: tokio::sync::watch::Sender<i64>,
    go_on: tokio::sync::Notify,
}

impl Script {
    pub fn will(&self, id: i64, does: Does) {
        self.does.lock().unwrap().insert(id, does);
    }

    fn does(&self, id: i64) -> Does {
        self.does.lock().unwrap().get(&id).copied().unwrap_or(Does::Fails)
    }

    /// What it was asked since the last time.
    pub fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    pub fn go_on(&self) {
        self.go_on.notify_one();
    }

    fn note(&self, what: &str, id: i64) {
        self.asked.lock().unwrap().push(format!("{what} {id}"));
    }
}

impl GuardHandler for Script {
    type Id = i64;

    async fn check_status(&self, id: &i64) -> Result<bool, BoxError> {
        self.note("check", *id);
        match self.does(*id) {
            Does::AlreadyDone => Ok(true),
            Does::CheckErrs => Err("the bank does not answer".into()),
            _ => Ok(self.done.lock().unwrap().contains(id)),
        }
    }

    async fn handle(&self, id: &i64) -> Result<bool, BoxError> {
        self.note("handle", *id);
        self.handling.send_replace(*id);
        match self.does(*id) {
            Does::Succeeds | Does::Understates => {
                self.done.lock().unwrap().insert(*id);
                Ok(self.does(*id) == Does::Succeeds)
            }
            Does::Boasts => Ok(true),
            Does::HandleErrs => Err("the bank refuses".into()),
            Does::Panics => panic!("a mistake in the handler"),
            Does::Hangs => std::future::pending().await,
            Does::Late => {
                self.go_on.notified().await;
                self.done.lock().unwrap().insert(*id);
                Ok(true)
            }
            Does::Fails | Does::AlreadyDone | Does::CheckErrs => Ok(false),
        }
    }

    fn manual_success_route(&self) -> String {
        ROUTE.into()
    }
}

/// As in the example of source 5, §10.
pub fn guard() -> Guard {
    Guard::table("user_bill")
        .service_name(SERVICE)
        .user_field("user_id")
        .status_field("status")
        .success_value("SUCCESS")
        .fail_value("FAIL")
        .min_interval(Duration::from_secs(5))
        .timeout(Duration::from_secs(180))
        .max_retry_count(2)
        .manual_remind_interval(Duration::from_secs(10))
}

/// A shop with bills: redrive's database and, apart from it, the business's.
pub struct Shop {
    pub db: Db,
    pub kind: Kind,
    pub url: String,
    pub clock: Clock,
    pub script: Arc<Script>,
    _dir: Option<tempfile::TempDir>,
}

impl Shop {
    /// With an empty table `user_bill`.
    pub async fn open(db: Db) -> Self {
        let kind = db.kind;
        let (url, dir) = fresh_url(kind).await;
        let url = if kind == Kind::Sqlite { format!("{url}?mode=rwc") } else { url };
        let shop = Self { db, kind, url, clock: Clock::manual(NOW), script: Arc::default(), _dir: dir };
        let comment = |text| if kind == Kind::MySql { format!("COMMENT '{text}'") } else { String::new() };
        shop.sql(&format!(
            "CREATE TABLE user_bill (id BIGINT {} PRIMARY KEY, user_id BIGINT {}, status VARCHAR(20))",
            comment("主键ID"),
            comment("用户ID")
        ))
        .await;
        if kind == Kind::Postgres {
            shop.sql("COMMENT ON COLUMN user_bill.id IS '主键ID'; COMMENT ON COLUMN user_bill.user_id IS '用户ID'")
                .await;
        }
        shop
    }

    /// Where the table is, in UTC: on SQLite it is this machine's time.
    pub fn database(&self) -> BusinessDatabase {
        let database = BusinessDatabase::from(&*self.url);
        match self.kind {
            Kind::Sqlite => database,
            Kind::Postgres => database.time_zone("UTC"),
            Kind::MySql => database.time_zone("+00:00"),
        }
    }

    pub fn builder(&self, guard: Guard) -> GuardsBuilder {
        let builder = Guards::builder(self.db.store.clone()).clock(self.clock.clone()).by_hand();
        builder.guard(guard, self.database(), self.script.clone())
    }

    pub async fn start(&self, guard: Guard) -> (Guards, GuardedTable) {
        let guards = self.builder(guard).start().await.unwrap();
        let table = guards.all().remove(0);
        (guards, table)
    }

    pub fn advance(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    pub async fn raw(&self) -> Raw {
        match self.kind {
            Kind::Sqlite => Raw::Sqlite(sqlx::SqliteConnection::connect(&self.url).await.unwrap()),
            Kind::Postgres => Raw::Postgres(sqlx::PgConnection::connect(&self.url).await.unwrap()),
            Kind::MySql => Raw::MySql(sqlx::MySqlConnection::connect(&self.url).await.unwrap()),
        }
    }

    /// Runs SQL as the application; the first column of the first row.
    pub async fn sql(&self, sql: &str) -> Option<i64> {
        self.raw().await.sql(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"))
    }

    /// All rows of a query whose columns are all text.
    pub async fn texts(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        let sql = AssertSqlSafe(sql.to_owned());
        macro_rules! read {
            ($c:expr) => {{
                let rows = sqlx::raw_sql(sql).fetch_all($c).await.unwrap();
                rows.iter().map(|row| (0..row.len()).map(|i| row.try_get(i).unwrap()).collect()).collect()
            }};
        }
        match &mut self.raw().await {
            Raw::Sqlite(c) => read!(c),
            Raw::Postgres(c) => read!(c),
            Raw::MySql(c) => read!(c),
        }
    }

    /// So many seconds after the beginning, as a datetime in SQL.
    pub fn at(&self, seconds: i64) -> String {
        let epoch = NOW.as_millis() / 1000 + seconds;
        match self.kind {
            Kind::Sqlite => format!("datetime({epoch}, 'unixepoch', 'localtime')"),
            Kind::Postgres => format!("to_timestamp({epoch}) AT TIME ZONE 'UTC'"),
            Kind::MySql => format!("FROM_UNIXTIME({epoch})"), // the connection is in UTC
        }
    }

    /// Adds a row; `+5` in what is set is a datetime.
    pub async fn add(&self, id: i64, status: &str, set: &str) {
        self.sql(&format!("INSERT INTO user_bill (id, user_id, status) VALUES ({id}, {}, '{status}')", 1000 + id % 10))
            .await;
        if !set.is_empty() {
            self.set(id, set).await;
        }
    }

    /// Sets columns of a row: `err_status=4000 err_start_time=+0`.
    pub async fn set(&self, id: i64, set: &str) {
        let set = set.split(' ').map(|part| {
            let (column, value) = part.split_once('=').unwrap();
            let value = match value.parse::<i64>() {
                Ok(seconds) if column.ends_with("_time") => self.at(seconds),
                _ => value.to_owned(),
            };
            format!("{column} = {value}")
        });
        let set = set.collect::<Vec<_>>().join(", ");
        self.sql(&format!("UPDATE user_bill SET {set} WHERE id = {id}")).await;
    }

    /// Waits until the handler has begun with this row.
    pub async fn until_handled(&self, id: i64) {
        self.script.handling.subscribe().wait_for(|now| *now == id).await.unwrap();
    }

    /// All that a guard may write in a row; datetimes in seconds since the beginning.
    pub async fn state(&self, id: i64) -> String {
        let epoch = |column: &str| match self.kind {
            Kind::Sqlite => format!("strftime('%s', {column}, 'utc')"),
            Kind::Postgres => format!("CAST(CAST(EXTRACT(EPOCH FROM {column} AT TIME ZONE 'UTC') AS bigint) AS text)"),
            Kind::MySql => format!("CAST(UNIX_TIMESTAMP({column}) AS CHAR)"),
        };
        let text = if self.kind == Kind::MySql { "CHAR" } else { "TEXT" };
        let int = |column: &str| format!("CAST({column} AS {text})");
        let columns = [
            int("err_status"),
            int("status"),
            epoch("err_start_time"),
            int("err_retry_count"),
            epoch("err_next_retry_time"),
            int("err_min_interval"),
            int("err_timeout"),
            int("err_submit_manual_status"),
            epoch("err_next_remind_staff_time"),
            int("err_manual_notify_count"),
        ];
        let rows = self.texts(&format!("SELECT {} FROM user_bill WHERE id = {id}", columns.join(", "))).await;
        let Some(row) = rows.into_iter().next() else { return "gone".into() };
        let names = ["", "", "start=", "n=", "next=", "every=", "within=", "manual=", "remind=", "told="];
        let shown = row.into_iter().zip(names).map(|(value, name)| {
            let is_time = matches!(name, "start=" | "next=" | "remind=");
            let value = value.map_or("-".into(), |value| if is_time { offset(&value) } else { value });
            format!("{name}{value}")
        });
        shown.collect::<Vec<_>>().join(" ")
    }
}

fn offset(epoch: &str) -> String {
    format!("+{}", epoch.parse::<i64>().unwrap() - NOW.as_millis() / 1000)
}

/// Polls once; it must go well.
pub async fn poll(guards: &Guards) -> PollReport {
    let mut reports = guards.poll_once().await;
    assert_eq!(reports.len(), 1);
    let report = reports.remove(0);
    assert_eq!(report.error, None);
    report
}

impl Shop {
    /// Adds so many rows, of which the last ones are abnormal since the beginning.
    pub async fn fill(&self, rows: u32, err_status: &str, abnormal: u32) {
        let digits = "(SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 \
                      UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
        let number = "1 + a.n + 10 * b.n + 100 * c.n + 1000 * d.n + 10000 * e.n";
        let numbers = format!(
            "SELECT {number} AS id FROM {digits} a, {digits} b, {digits} c, {digits} d, {digits} e WHERE {number} <= {rows}"
        );
        let first = rows - abnormal;
        self.sql(&format!(
            "INSERT INTO user_bill (id, user_id, status, err_status, err_start_time) \
             SELECT id, id, CASE WHEN id > {first} THEN 'FAIL' ELSE 'SUCCESS' END, \
             CASE WHEN id > {first} THEN {err_status} ELSE 2000 END, {} FROM ({numbers}) AS numbers",
            self.at(0)
        ))
        .await;
    }
}
