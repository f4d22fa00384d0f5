//! How long a poll of a guard takes over a big table, with and without its index.
//!
//! ```sh
//! scripts/bench-guard                                            # on the three databases
//! cargo run --release --example guard_bench -- sqlite://x.db 1000000
//! ```
//!
//! The table `user_bill` of that database is dropped and made anew: the rows are normal, but for a thousand that are
//! abnormal and due. Handlers fail at once, so that what is measured is the database.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::time::Instant;

use redrive::guard::{BoxError, Guard, GuardHandler, Guards};
use redrive::{Clock, Store};
use sqlx::AssertSqlSafe;

const CHUNK: u64 = 100_000;

struct Fails;

impl GuardHandler for Fails {
    type Id = i64;
    async fn check_status(&self, _: &i64) -> Result<bool, BoxError> {
        Ok(false)
    }
    async fn handle(&self, _: &i64) -> Result<bool, BoxError> {
        Ok(false)
    }
    fn manual_success_route(&self) -> String {
        String::new()
    }
}

/// A connection to whichever database it is.
enum Raw {
    Sqlite(sqlx::SqliteConnection),
    Postgres(sqlx::PgConnection),
    MySql(sqlx::MySqlConnection),
}

impl Raw {
    async fn connect(url: &str) -> sqlx::Result<Self> {
        use sqlx::Connection as _;
        Ok(match url.split(':').next() {
            Some("sqlite") => Self::Sqlite(sqlx::SqliteConnection::connect(url).await?),
            Some("mysql" | "mariadb") => Self::MySql(sqlx::MySqlConnection::connect(url).await?),
            _ => Self::Postgres(sqlx::PgConnection::connect(url).await?),
        })
    }

    async fn run(&mut self, sql: String) -> sqlx::Result<()> {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql));
        match self {
            Self::Sqlite(c) => sql.execute(c).await.map(|_| ()),
            Self::Postgres(c) => sql.execute(c).await.map(|_| ()),
            Self::MySql(c) => sql.execute(c).await.map(|_| ()),
        }
    }

    fn analyze(&self) -> &'static str {
        if matches!(self, Self::MySql(_)) { "ANALYZE TABLE user_bill" } else { "ANALYZE user_bill" }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or_else(|| anyhow::anyhow!("guard_bench URL [ROWS [ABNORMAL]]"))?;
    let rows: u64 = arguments.next().map_or(Ok(5_000_000), |rows| rows.parse())?;
    let abnormal: u64 = arguments.next().map_or(Ok(1000), |rows| rows.parse())?;
    let store = Store::open("sqlite::memory:").await?;
    let mut raw = Raw::connect(&url).await?;
    raw.run("DROP TABLE IF EXISTS user_bill".into()).await?;
    raw.run("CREATE TABLE user_bill (id BIGINT PRIMARY KEY, user_id BIGINT, status VARCHAR(20))".into()).await?;
    poll(&store, &url, guard(), "an empty table").await?;
    let began = Instant::now();
    fill(&mut raw, rows, abnormal).await?;
    raw.run(raw.analyze().into()).await?;
    println!("{rows} rows, {abnormal} of them abnormal, written in {:.1?}", began.elapsed());
    poll(&store, &url, guard(), "without the index").await?;
    let began = Instant::now();
    let indexed = guard().create_index(true);
    poll(&store, &url, indexed.clone(), "the first with the index, and its creation").await?;
    println!("  ({:.1?} in all)", began.elapsed());
    raw.run(raw.analyze().into()).await?;
    raw.run("UPDATE user_bill SET err_retry_count = 0, err_next_retry_time = NULL WHERE err_status = 4000".into())
        .await?;
    poll(&store, &url, indexed.clone(), &format!("with the index, {abnormal} rows due")).await?;
    poll(&store, &url, indexed, "with the index, nothing due").await
}

fn guard() -> Guard {
    let guard = Guard::table("user_bill").status_field("status").success_value("SUCCESS").fail_value("FAIL");
    guard.max_retry_count(100).timeout(std::time::Duration::from_secs(10 * 365 * 24 * 3600))
}

async fn poll(store: &Store, url: &str, guard: Guard, what: &str) -> anyhow::Result<()> {
    let clock = Clock::starting_at(store.now().await?);
    let guards = Guards::builder(store.clone()).guard(guard, url, Fails).clock(clock).by_hand().start().await?;
    let began = Instant::now();
    let reports = guards.poll_once().await;
    let took = began.elapsed();
    for report in reports {
        anyhow::ensure!(report.error.is_none(), "{report:?}");
        println!("  a poll took {took:>8.1?}: {what} ({} rows retried)", report.again);
    }
    Ok(())
}

async fn fill(raw: &mut Raw, rows: u64, abnormal: u64) -> anyhow::Result<()> {
    let digits = "(SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 \
                  UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
    let number = "a.n + 10 * b.n + 100 * c.n + 1000 * d.n + 10000 * e.n";
    // The abnormal ones are spread over the whole table.
    let every = (rows / abnormal).max(1);
    for first in (1..=rows).step_by(usize::try_from(CHUNK)?) {
        raw.run(format!(
            "INSERT INTO user_bill (id, user_id, status, err_status, err_start_time) \
             SELECT id, id, CASE WHEN id % {every} = 0 THEN 'FAIL' ELSE 'SUCCESS' END, \
             CASE WHEN id % {every} = 0 THEN 4000 ELSE 2000 END, CURRENT_TIMESTAMP \
             FROM (SELECT {first} + {number} AS id FROM {digits} a, {digits} b, {digits} c, {digits} d, {digits} e) AS n \
             WHERE id <= {rows}"
        ))
        .await?;
    }
    Ok(())
}
