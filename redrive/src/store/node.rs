//! Nodes: fresh numbers, beats, fences. And the database's clock.
//!
//! *State.* `redrive_node(number, beat, dead)`. A number is given out once and never again. `beat` is a counter.
//!
//! *Invariants.* Only the node itself moves its beat, and only while `dead` is 0. Others fence it
//! only by a compare-and-set on (number, beat, dead = 0): whoever does has watched that very beat stand still. `dead` never
//! goes back.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::task::NodeNumber;

use super::Store;
use super::db::{Connection, Dialect, query};
use super::pool::{Pools, Use};
use super::retry::{Scope, retrying};

/// What a node says of itself when it registers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registration {
    /// For people: host and process.
    pub name: String,
    /// Which build it runs.
    pub build: String,
    /// The methods that it handles.
    pub methods: Vec<String>,
    /// The node's own lease. Zero if an older build registered it.
    pub lease: std::time::Duration,
}

/// A node, as the database knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub number: NodeNumber,
    /// Its beat counter.
    pub beat: i64,
    /// When it last beat, by the database's clock.
    pub beat_at: Timestamp,
    /// When it started.
    pub started_at: Timestamp,
    /// Whether it is fenced.
    pub dead: bool,
    /// Whether it is on its way out.
    pub leaving: bool,
    /// Whether it reads monthly tables, if there are any.
    pub knows_months: bool,
    /// Who it says it is.
    pub registration: Registration,
}

impl Node {
    /// The shards of a method that it looks after, if these are all nodes and they find each other by the database.
    pub fn shards(&self, method: &str, all: &[Self]) -> Vec<u8> {
        crate::cluster::owned_shards(all, self.number, crate::task::Lane::of(method))
    }
}

/// How a node finds itself when it beats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeSeen {
    /// Alive; this is the time of the database.
    Alive(Timestamp),
    /// Fenced: it must drop its work and take a new number.
    Fenced,
}

/// The next value of a counter that never goes back.
pub(super) async fn count_up(pools: &Pools, name: &str) -> Result<i64> {
    retrying!(pools, Use::Write, Scope::Transaction, &format!("counting up {name}"), |c, _| next_value(c, name).await)
}

async fn next_value(c: &mut Connection<'_>, name: &str) -> sqlx::Result<i64> {
    c.execute(query(first_value(c.dialect())).bind(name).bind(0i64)).await?;
    c.execute(query("UPDATE redrive_counter SET value = value + 1 WHERE name = ?").bind(name)).await?;
    let row = c.row(query("SELECT value FROM redrive_counter WHERE name = ?").bind(name)).await?;
    row.map(|row| row.int()).transpose()?.ok_or(sqlx::Error::RowNotFound)
}

/// Makes a row of `redrive_counter`, if it is not there.
pub(super) fn first_value(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::MySql => "INSERT IGNORE INTO redrive_counter (name, value) VALUES (?, ?)",
        _ => "INSERT INTO redrive_counter (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING",
    }
}

pub(super) async fn database_time(c: &mut Connection<'_>) -> sqlx::Result<Timestamp> {
    let sql = match c.dialect() {
        Dialect::Sqlite => "SELECT CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)",
        Dialect::Postgres => "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
        // now(3) is the start of the statement; sysdate is not replicated but this is only read.
        Dialect::MySql => "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)",
    };
    let row = c.row(query(sql)).await?.ok_or(sqlx::Error::RowNotFound)?;
    Ok(Timestamp::from_millis(row.int()?))
}

impl Store {
    /// A new node, alive, with a number that nobody ever had.
    pub async fn register(&self, who: &Registration, now: Timestamp) -> Result<NodeNumber> {
        let doing = format!("registering node {}", who.name);
        let methods = serde_json::to_string(&who.methods).unwrap_or_default();
        // First of all, so that a repetition finds the row of an earlier try, instead of leaving a node that never beats.
        let number = count_up(self.pools(), "node").await?;
        retrying!(self.pools(), Use::Write, Scope::Transaction, &doing, |c, tried| {
            let there = query("SELECT number FROM redrive_node WHERE number = ?").bind(number);
            if tried > 0 && c.row(there).await?.is_some() {
                return Ok(NodeNumber(number));
            }
            let seen = self.follow_tables(c).await?;
            let sql = "INSERT INTO redrive_node (number, beat, beat_at, started_at, layout_seen, lease_ms, name, build, methods) \
                       VALUES (?, 0, ?, ?, ?, ?, ?, ?, ?)";
            let row = query(sql).bind(number).bind(now).bind(now).bind(i64::from(seen));
            let row = row.bind(crate::clock::millis(who.lease));
            c.execute(row.bind(&*who.name).bind(&*who.build).bind(&*methods)).await?;
            Ok(NodeNumber(number))
        })
    }

    /// A node's sign of life.
    pub async fn beat(&self, node: NodeNumber) -> Result<NodeSeen> {
        let doing = format!("beating as node {node}");
        retrying!(self.pools(), Use::Write, Scope::Statement, &doing, |c, _| {
            let now = database_time(c).await?;
            let seen = self.follow_tables(c).await?;
            let sql =
                "UPDATE redrive_node SET beat = beat + 1, beat_at = ?, layout_seen = ? WHERE number = ? AND dead = 0";
            let alive = c.execute(query(sql).bind(now).bind(i64::from(seen)).bind(node)).await? == 1;
            Ok(if alive { NodeSeen::Alive(now) } else { NodeSeen::Fenced })
        })
    }

    /// Says that a node is on its way out: others take over its shards while it finishes what it has.
    pub async fn announce_leave(&self, node: NodeNumber) -> Result<()> {
        let doing = format!("announcing that node {node} leaves");
        retrying!(self.pools(), Use::Write, Scope::Statement, &doing, |c, _| {
            c.execute(query("UPDATE redrive_node SET leaving = 1 WHERE number = ? AND dead = 0").bind(node)).await
        })
        .map(|_| ())
    }

    /// A node says of itself that it is gone and holds nothing: nobody has to wait for its silence.
    pub async fn retire(&self, node: NodeNumber) -> Result<()> {
        let doing = format!("retiring node {node}");
        retrying!(self.pools(), Use::Write, Scope::Statement, &doing, |c, _| {
            c.execute(query("UPDATE redrive_node SET dead = 1 WHERE number = ? AND dead = 0").bind(node))
                .await
                .map(|_| ())
        })
    }

    /// Declares a node dead, if its beat still is the one that was watched. `false`: it moved, or was fenced already. If the
    /// answer to the first try was lost, whoever finds the node dead at that beat follows it up: rather two than none.
    pub async fn fence(&self, node: NodeNumber, beat: i64) -> Result<bool> {
        let doing = format!("fencing node {node}");
        retrying!(self.pools(), Use::Write, Scope::Statement, &doing, |c, tried| {
            let sql = "UPDATE redrive_node SET dead = 1 WHERE number = ? AND beat = ? AND dead = 0";
            if c.execute(query(sql).bind(node).bind(beat)).await? == 1 {
                return Ok(true);
            }
            let fenced = query("SELECT number FROM redrive_node WHERE number = ? AND beat = ? AND dead = 1");
            Ok(tried > 0 && c.row(fenced.bind(node).bind(beat)).await?.is_some())
        })
    }

    /// All nodes that are known, the oldest first.
    pub async fn nodes(&self) -> Result<Vec<Node>> {
        retrying!(self.pools(), Use::Read, Scope::Statement, "listing nodes", |c, _| {
            let sql = "SELECT number, beat, beat_at, started_at, dead, leaving, layout_seen, lease_ms, name, build, methods FROM redrive_node ORDER BY number";
            c.rows(query(sql)).await?.iter().map(read_node).collect()
        })
    }

    /// The nodes that are not dead, the oldest first, and whether they are leaving: little to read, for who asks often.
    pub(crate) async fn living(&self) -> Result<Vec<(NodeNumber, bool)>> {
        retrying!(self.pools(), Use::Read, Scope::Statement, "looking who is there", |c, _| living(c).await)
    }

    /// What this database is called among others: 16 hexadecimal digits, by chance, made by whoever asks first.
    pub(crate) async fn database_name(&self) -> Result<String> {
        // The standard library's only source of chance.
        let chance = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), "database");
        retrying!(self.pools(), Use::Write, Scope::Transaction, "asking what the database is called", |c, _| {
            c.execute(query(first_value(c.dialect())).bind("database").bind((chance >> 1) as i64)).await?;
            let row = c.row(query("SELECT value FROM redrive_counter WHERE name = ?").bind("database")).await?;
            row.map(|row| row.int()).transpose()?.ok_or(sqlx::Error::RowNotFound)
        })
        .map(|name| format!("{name:016x}"))
    }
}

pub(super) async fn living(c: &mut Connection<'_>) -> sqlx::Result<Vec<(NodeNumber, bool)>> {
    let sql = "SELECT number, leaving FROM redrive_node WHERE dead = 0 ORDER BY number";
    let read = |row: &super::db::Row| {
        let mut columns = row.columns();
        Ok((NodeNumber(columns.int()?), columns.int()? != 0))
    };
    c.rows(query(sql)).await?.iter().map(read).collect()
}

fn read_node(row: &super::db::Row) -> sqlx::Result<Node> {
    let mut c = row.columns();
    let (number, beat) = (NodeNumber(c.int()?), c.int()?);
    let (beat_at, started_at) = (Timestamp::from_millis(c.int()?), Timestamp::from_millis(c.int()?));
    let (dead, leaving, knows_months) = (c.int()? != 0, c.int()? != 0, c.int()? != 0);
    let lease = Duration::from_millis(u64::try_from(c.int()?).unwrap_or(0));
    let (name, build) = (c.text()?.to_owned(), c.text()?.to_owned());
    let methods = serde_json::from_str(c.text()?).unwrap_or_default();
    let registration = Registration { name, build, methods, lease };
    Ok(Node { number, beat, beat_at, started_at, dead, leaving, knows_months, registration })
}
