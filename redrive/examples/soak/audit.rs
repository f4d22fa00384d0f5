//! The witness: triggers by which the database itself writes down every change of a task, who made it, and whether the node
//! that held the task was alive at that moment. redrive knows nothing of it.
//!
//! A trigger runs inside the statement that it watches, while that holds the row's lock: the order of `seq` is, for each
//! task, the order of its changes. What is rolled back is rolled back here as well.
//!
//! `began` says when the transaction of a change began. A change that was decided before its owner was fenced may be
//! carried out just after it, under a row lock that it has had since; one whose transaction began after the fence may not.
//! PostgreSQL knows it; MariaDB is asked for it only where the owner is dead, since asking is dear; on SQLite there is but
//! one writer, and the case does not exist.

use serde::Serialize;

use crate::database::{Kind, Raw, Value};

/// One change of a task.
#[derive(Clone, Debug, Serialize)]
pub struct Seen {
    pub seq: i64,
    /// I, U or D.
    pub op: String,
    pub id: i64,
    pub old: Option<State>,
    pub new: Option<State>,
    /// Whether the node is alive that held the task, or takes it.
    pub alive: bool,
    /// When it was made, and when its transaction began: milliseconds since 1970.
    pub at: i64,
    pub began: Option<i64>,
    /// The database's user; empty where there are none.
    pub who: String,
    /// Of an insert.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub params: String,
}

/// What a row says of its task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct State {
    pub status: i64,
    pub version: i64,
    pub owner: i64,
    pub crashes: i64,
    pub attempts: i64,
    pub cancel: i64,
}

/// A node that was declared dead, or said of itself that it is gone.
#[derive(Clone, Debug)]
pub struct Fence {
    pub number: i64,
    pub at: i64,
    /// By itself, on its way out.
    pub left: bool,
}

/// A node that got a number.
#[derive(Clone, Copy, Debug)]
pub struct Join {
    pub number: i64,
    pub at: i64,
}

const STATE: [(&str, &str); 6] = [
    ("status", "status"),
    ("version", "version"),
    ("owner", "locked_by"),
    ("crashes", "crashes"),
    ("attempts", "attempt_count"),
    ("cancel", "cancel_requested"),
];

/// Makes the witness and the business table.
pub async fn install(kind: Kind, db: &mut Raw) -> anyhow::Result<()> {
    db.run(&tables(kind)).await?;
    let fenced =
        format!("INSERT INTO soak_fence (number, at, leaving) VALUES (NEW.number, {}, NEW.leaving)", now(kind));
    let joined = format!("INSERT INTO soak_join (number, at) VALUES (NEW.number, {})", now(kind));
    let died = "OLD.dead = 0 AND NEW.dead = 1";
    db.run(&trigger(kind, "soak_fenced", "UPDATE", "redrive_node", died, &fenced)).await?;
    db.run(&trigger(kind, "soak_joined", "INSERT", "redrive_node", "1 = 1", &joined)).await?;
    let tasks = db.tables("task").await?;
    watch(kind, db, &tasks).await
}

/// Watches these tables of tasks. Can be repeated, and misses what is done to them meanwhile.
pub async fn watch(kind: Kind, db: &mut Raw, tables: &[String]) -> anyhow::Result<()> {
    for table in tables {
        for op in ["INSERT", "UPDATE", "DELETE"] {
            let name = format!("soak_{}_{table}", op.to_lowercase());
            db.run(&trigger(kind, &name, op, table, "1 = 1", &note(kind, op))).await?;
        }
    }
    Ok(())
}

fn tables(kind: Kind) -> String {
    let seq = match kind {
        Kind::Postgres => "BIGSERIAL PRIMARY KEY",
        Kind::Mariadb => "BIGINT AUTO_INCREMENT PRIMARY KEY",
        Kind::Sqlite => "INTEGER PRIMARY KEY AUTOINCREMENT",
    };
    let states = STATE.map(|(name, _)| format!("old_{name} BIGINT, new_{name} BIGINT")).join(", ");
    format!(
        "CREATE TABLE soak_audit (seq {seq}, op VARCHAR(1) NOT NULL, id BIGINT NOT NULL, {states},
           alive BIGINT NOT NULL, at BIGINT NOT NULL, began BIGINT, who VARCHAR(100), params TEXT);
         CREATE TABLE soak_fence (seq {seq}, number BIGINT NOT NULL, at BIGINT NOT NULL, leaving BIGINT NOT NULL);
         CREATE TABLE soak_join (seq {seq}, number BIGINT NOT NULL, at BIGINT NOT NULL);
         CREATE TABLE soak_business (n VARCHAR(100) PRIMARY KEY)"
    )
}

/// What a trigger writes, for an operation on a row.
fn note(kind: Kind, op: &str) -> String {
    let side = |side: &str, there: bool| {
        STATE.map(|(_, column)| if there { format!("{side}.{column}") } else { "NULL".into() }).to_vec()
    };
    let (old, new) = (side("OLD", op != "INSERT"), side("NEW", op != "DELETE"));
    let states = old.into_iter().zip(new).map(|(old, new)| format!("{old}, {new}")).collect::<Vec<_>>().join(", ");
    let holder = match op {
        "INSERT" => "NEW.locked_by",
        "DELETE" => "OLD.locked_by",
        _ => "CASE WHEN OLD.status = 1 THEN OLD.locked_by ELSE NEW.locked_by END",
    };
    let alive = format!(
        "CASE WHEN EXISTS (SELECT 1 FROM redrive_node n WHERE n.number = {holder} AND n.dead = 0) THEN 1 ELSE 0 END"
    );
    // MySQL shows transactions as they were when it was last asked, unless nobody has asked for 100 ms: it is asked only where it matters, not
    // for each row that nobody holds, or what it says is seconds old and has not got ours.
    let (began, who) = match kind {
        Kind::Postgres => ("CAST(EXTRACT(EPOCH FROM transaction_timestamp()) * 1000 AS BIGINT)".into(), "session_user"),
        Kind::Mariadb => (
            format!(
                "CASE WHEN {holder} = 0 OR {alive} = 1 THEN NULL ELSE COALESCE(
                   (SELECT MIN(UNIX_TIMESTAMP(x.trx_started)) * 1000 FROM information_schema.INNODB_TRX x
                    WHERE x.trx_mysql_thread_id = CONNECTION_ID()), UNIX_TIMESTAMP(NOW(3)) * 1000) END"
            ),
            "SUBSTRING_INDEX(USER(), '@', 1)",
        ),
        Kind::Sqlite => ("NULL".into(), "''"),
    };
    let (id, params) = if op == "DELETE" { ("OLD.id", "NULL") } else { ("NEW.id", "NEW.params_json") };
    let params = if op == "UPDATE" { "NULL" } else { params };
    let names = STATE.map(|(name, _)| format!("old_{name}, new_{name}")).join(", ");
    let (letter, at) = (&op[..1], now(kind));
    format!(
        "INSERT INTO soak_audit (op, id, {names}, alive, at, began, who, params)
         VALUES ('{letter}', {id}, {states}, {alive}, {at}, {began}, {who}, {params})"
    )
}

fn now(kind: Kind) -> &'static str {
    match kind {
        Kind::Postgres => "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
        Kind::Mariadb => "CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)",
        Kind::Sqlite => "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)",
    }
}

fn trigger(kind: Kind, name: &str, op: &str, table: &str, when: &str, body: &str) -> String {
    match kind {
        Kind::Postgres => format!(
            "CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}; RETURN NULL; END $$;
             DROP TRIGGER IF EXISTS {name} ON {table};
             CREATE TRIGGER {name} AFTER {op} ON {table} FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION {name}()"
        ),
        Kind::Mariadb => {
            format!(
                "DROP TRIGGER IF EXISTS {name};
                 CREATE TRIGGER {name} AFTER {op} ON {table} FOR EACH ROW IF {when} THEN {body}; END IF"
            )
        }
        Kind::Sqlite => {
            format!(
                "DROP TRIGGER IF EXISTS {name};
                 CREATE TRIGGER {name} AFTER {op} ON {table} FOR EACH ROW WHEN {when} BEGIN {body}; END"
            )
        }
    }
}

/// All that the witness saw, in order.
pub async fn read(db: &mut Raw) -> anyhow::Result<Vec<Seen>> {
    let names = STATE.map(|(name, _)| format!("old_{name}, new_{name}")).join(", ");
    let sql = format!("SELECT seq, op, id, alive, at, began, who, params, {names} FROM soak_audit ORDER BY seq");
    Ok(db.rows(&sql).await?.iter().map(|row| read_seen(row)).collect())
}

fn read_seen(row: &[Value]) -> Seen {
    let int = |i: usize| row[i].int();
    let state = |first: usize| {
        Some(State {
            status: int(first)?,
            version: int(first + 2)?,
            owner: int(first + 4)?,
            crashes: int(first + 6)?,
            attempts: int(first + 8)?,
            cancel: int(first + 10)?,
        })
    };
    Seen {
        seq: int(0).unwrap_or_default(),
        op: row[1].text().to_owned(),
        id: int(2).unwrap_or_default(),
        alive: int(3) == Some(1),
        at: int(4).unwrap_or_default(),
        began: int(5),
        who: row[6].text().to_owned(),
        params: row[7].text().to_owned(),
        old: state(8),
        new: state(9),
    }
}

pub async fn read_fences(db: &mut Raw) -> anyhow::Result<Vec<Fence>> {
    let rows = db.rows("SELECT number, at, leaving FROM soak_fence ORDER BY seq").await?;
    let fence = |row: &Vec<Value>| Some(Fence { number: row[0].int()?, at: row[1].int()?, left: row[2].int()? == 1 });
    Ok(rows.iter().filter_map(fence).collect())
}

pub async fn read_joins(db: &mut Raw) -> anyhow::Result<Vec<Join>> {
    let rows = db.rows("SELECT number, at FROM soak_join ORDER BY seq").await?;
    Ok(rows.iter().filter_map(|row| Some(Join { number: row[0].int()?, at: row[1].int()? })).collect())
}
