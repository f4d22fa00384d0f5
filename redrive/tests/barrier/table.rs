//! The table in a participant's own database, and its rows' age.

use std::time::Duration;

use redrive::barrier::{self, BarrierKey, KEEP, Op};
use redrive::store::Dialect;
use sqlx::Connection as _;

use crate::harness::*;
use crate::party::*;

stores!(
    many_may_make_the_table_at_once,
    a_missing_table_is_named,
    redrive_may_move_in_where_the_table_is,
    rows_bear_the_databases_time_and_expire_by_it,
    an_expiry_takes_no_more_than_it_may,
);

/// An empty database: nothing of redrive in it.
struct Elsewhere {
    url: String,
    kind: Kind,
    _dir: Option<tempfile::TempDir>,
}

impl Elsewhere {
    async fn new(kind: Kind) -> Self {
        let (mut url, dir) = fresh_url(kind).await;
        if kind == Kind::Sqlite {
            url += "?mode=rwc";
        }
        Self { url, kind, _dir: dir }
    }

    async fn connect(&self) -> Raw {
        match self.kind {
            Kind::Sqlite => Raw::Sqlite(sqlx::SqliteConnection::connect(&self.url).await.unwrap()),
            Kind::Postgres => Raw::Postgres(sqlx::PgConnection::connect(&self.url).await.unwrap()),
            Kind::MySql => Raw::MySql(sqlx::MySqlConnection::connect(&self.url).await.unwrap()),
        }
    }
}

async fn many_may_make_the_table_at_once(db: Db) {
    let elsewhere = Elsewhere::new(db.kind).await;
    let mut makers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let mut raw = elsewhere.connect().await;
        makers.spawn(async move { barrier::create_table(raw.connection()).await });
    }
    while let Some(made) = makers.join_next().await {
        made.unwrap().unwrap();
    }
    let mut raw = elsewhere.connect().await;
    raw.begin().await;
    assert!(matches!(barrier::enter(raw.connection(), &key(Op::Run)).await.unwrap(), barrier::Entered::Proceed(_)));
    raw.commit().await;
    barrier::create_table(raw.connection()).await.unwrap();
    assert_eq!(raw.sql("SELECT COUNT(*) FROM redrive_barrier").await.unwrap(), Some(1), "nothing was lost by that");
}

async fn a_missing_table_is_named(db: Db) {
    let elsewhere = Elsewhere::new(db.kind).await;
    let mut raw = elsewhere.connect().await;
    let said = barrier::enter(raw.connection(), &key(Op::Run)).await.unwrap_err().to_string();
    assert!(said.contains("entering the barrier for run of step charge of saga order-7"), "{said}");
    assert!(said.contains("create_table"), "{said}");
}

async fn redrive_may_move_in_where_the_table_is(db: Db) {
    let elsewhere = Elsewhere::new(db.kind).await;
    barrier::create_table(elsewhere.connect().await.connection()).await.unwrap();
    let both = Db::at(elsewhere.kind, elsewhere.url.clone(), options()).await;
    assert_eq!(done(&both, Op::Run).await, Said::Proceed);
}

async fn rows_bear_the_databases_time_and_expire_by_it(db: Db) {
    let before = db.store.now().await.unwrap().as_millis();
    done(&db, Op::Run).await;
    let after = db.store.now().await.unwrap().as_millis();
    let created = db.sql("SELECT created_at FROM redrive_barrier").await.unwrap();
    assert!((before - 1..=after + 1).contains(&created), "{before} {created} {after}"); // rounded, not cut off
    let mut raw = Raw::connect(&db).await;
    let day = Duration::from_secs(24 * 3600);
    assert_eq!(barrier::expire(raw.connection(), day, 10).await.unwrap(), 0);
    assert_eq!(barrier::expire(raw.connection(), Duration::MAX, 10).await.unwrap(), 0);
    db.sql(&format!("UPDATE redrive_barrier SET created_at = created_at - {}", day.as_millis() + 1)).await;
    assert_eq!(barrier::expire(raw.connection(), day, 10).await.unwrap(), 1);
    assert_eq!(done(&db, Op::Run).await, Said::Proceed, "its place is free again, which is why rows must live long");
}

async fn an_expiry_takes_no_more_than_it_may(db: Db) {
    let mut party = Party::begun(&db).await;
    for n in 0..5 {
        party.enter(&BarrierKey::new(format!("old-{n}"), "a", Op::Run)).await;
    }
    let age = KEEP.as_millis() + 1000;
    party.raw.sql(&format!("UPDATE redrive_barrier SET created_at = created_at - {age}")).await.unwrap();
    // The oldest of all, so it goes first.
    party.raw.sql("UPDATE redrive_barrier SET created_at = 1 WHERE saga_id = 'old-3'").await.unwrap();
    party.commit().await;
    done(&db, Op::Undo).await;
    let mut raw = Raw::connect(&db).await;
    assert_eq!(barrier::expire(raw.connection(), KEEP, 2).await.unwrap(), 2);
    assert_eq!(db.sql("SELECT COUNT(*) FROM redrive_barrier WHERE saga_id = 'old-3'").await, Some(0));
    assert_eq!(barrier::expire(raw.connection(), KEEP, 2).await.unwrap(), 2);
    assert_eq!(barrier::expire(raw.connection(), KEEP, 2).await.unwrap(), 1);
    assert_eq!(barrier::expire(raw.connection(), KEEP, 2).await.unwrap(), 0);
    assert_eq!(db.count("redrive_barrier").await, 2, "what is young stays");
}

/// Those who copy it get what `create_table` makes.
#[test]
fn the_guide_shows_the_tables_sql() {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let guide = words(include_str!("../../../docs/guide/barrier.md"));
    for dialect in [Dialect::Sqlite, Dialect::Postgres, Dialect::MySql] {
        let sql = words(&barrier::table_sql(dialect));
        assert!(guide.contains(&sql), "the guide lacks, for {dialect:?}:\n{}", barrier::table_sql(dialect));
    }
}
