//! A participant: a connection with a transaction of its own, in which it asks the barrier.

use redrive::barrier::{self, BarrierKey, Entered, Op};
use serde_json::{Value as Json, json};
use sqlx::Row as _;

use crate::harness::{Db, Kind, Raw, moment};

/// What the barrier said, without the entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    Proceed,
    Duplicate(Option<Json>),
    NullUndo,
    Dangling,
}

pub struct Party {
    pub raw: Raw,
    session: i64,
}

impl Party {
    pub async fn of(db: &Db) -> Self {
        let mut raw = Raw::connect(db).await;
        let session = match db.kind {
            Kind::Sqlite => 0,
            Kind::Postgres => raw.sql("SELECT pg_backend_pid()::bigint").await.unwrap().unwrap(),
            Kind::MySql => raw.sql("SELECT CAST(CONNECTION_ID() AS SIGNED)").await.unwrap().unwrap(),
        };
        Self { raw, session }
    }

    /// One that has begun.
    pub async fn begun(db: &Db) -> Self {
        let mut party = Self::of(db).await;
        party.raw.begin().await;
        party
    }

    pub async fn try_enter(&mut self, key: &BarrierKey) -> redrive::Result<Entered> {
        barrier::enter(self.raw.connection(), key).await
    }

    /// Asks, and keeps the result if it is to proceed.
    pub async fn enter_keeping(&mut self, key: &BarrierKey, result: Json) -> redrive::Result<Said> {
        Ok(match self.try_enter(key).await? {
            Entered::Proceed(entry) => {
                entry.keep(self.raw.connection(), &result).await?;
                Said::Proceed
            }
            Entered::Duplicate(kept) => Said::Duplicate(kept),
            Entered::NullUndo => Said::NullUndo,
            Entered::Dangling => Said::Dangling,
        })
    }

    pub async fn enter(&mut self, key: &BarrierKey) -> Said {
        self.enter_keeping(key, result_of(key)).await.unwrap()
    }

    pub async fn commit(mut self) {
        self.raw.commit().await;
    }

    pub async fn roll_back(mut self) {
        self.raw.sql("ROLLBACK").await.unwrap();
    }
}

/// What the first one keeps, in these tests.
fn result_of(key: &BarrierKey) -> Json {
    json!({ "done": key.to_string() })
}

pub fn key(op: Op) -> BarrierKey {
    BarrierKey::new("order-7", "charge", op)
}

/// What a repetition of this gets.
pub fn duplicate(op: Op) -> Said {
    Said::Duplicate(Some(result_of(&key(op))))
}

/// A whole transaction.
pub async fn done(db: &Db, op: Op) -> Said {
    let mut party = Party::begun(db).await;
    let said = party.enter(&key(op)).await;
    party.commit().await;
    said
}

/// One who asks beside us, until its commit. On MySQL and PostgreSQL this returns when it waits for somebody's lock. SQLite has but one writer,
/// so there it waits at its BEGIN, or has not come that far: it makes no difference.
pub async fn beside(db: &Db, op: Op) -> tokio::task::JoinHandle<Said> {
    let mut party = Party::of(db).await;
    let session = party.session;
    let waiter = tokio::spawn(async move {
        party.raw.begin().await;
        let said = party.enter(&key(op)).await;
        party.commit().await;
        said
    });
    until_it_waits(db, session).await;
    waiter
}

async fn until_it_waits(db: &Db, session: i64) {
    let mut raw = Raw::connect(db).await;
    while !waits(&mut raw, session).await {
        moment().await;
    }
}

async fn waits(raw: &mut Raw, session: i64) -> bool {
    match raw {
        Raw::Sqlite(_) => true,
        Raw::Postgres(_) => {
            let waiting = format!("SELECT COUNT(*) FROM pg_locks WHERE pid = {session} AND NOT granted");
            raw.sql(&waiting).await.unwrap() == Some(1)
        }
        // Its tables of transactions are a copy, which stays as it is while many look at it.
        Raw::MySql(c) => {
            let status = sqlx::raw_sql("SHOW ENGINE INNODB STATUS").fetch_one(c).await.unwrap().get::<String, _>(2);
            let of_session = |t: &&str| t.contains(&format!("thread id {session},"));
            status.split("---TRANSACTION").find(of_session).is_some_and(|t| t.contains("LOCK WAIT"))
        }
    }
}
