//! The statements of a guard, as each database wants them. Names are checked and quoted, values are bound.
//!
//! Every scan goes by `err_status`, with the code written out, so that an index on `err_status, err_next_retry_time` serves
//! all of them: none reads more than the rows that are abnormal.

use std::sync::{Arc, PoisonError, RwLock};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::store::db::{Columns, Dialect, Query, Value, query};

use super::catalogue::{Catalogue, quoted};
use super::config::Guard;
use super::value::{Holds, RowId, RowValue};

/// A table's names and kinds, ready to be written into statements.
#[derive(Clone, Debug)]
pub(super) struct Sql {
    pub(super) dialect: Dialect,
    pub(super) table: String,
    pub(super) id: Field,
    pub(super) status: Field,
    pub(super) user: Option<Field>,
    success: RowValue,
    fail: RowValue,
    /// What names the index to be used.
    hint: Arc<RwLock<String>>,
}

/// A column that values are compared with.
#[derive(Clone, Debug)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) quoted: String,
    pub(super) holds: Holds,
    /// What stands for a value.
    slot: String,
}

/// Seconds since 1970: what is bound for a datetime.
pub(super) type Seconds = i64;

/// The last moment of which MariaDB can make a datetime (and then NULL: due at once).
const LAST: Seconds = i32::MAX as Seconds;

pub(super) fn seconds(now: Timestamp) -> Seconds {
    now.as_millis().div_euclid(1000)
}

impl Field {
    fn of(name: &str, catalogue: &Catalogue, dialect: Dialect) -> Result<Self> {
        let holds = catalogue.column(name).and_then(|column| column.holds.clone());
        let holds = holds.ok_or_else(|| Error::invalid(name, "is not there, or of no type that can be used"))?;
        let slot = match (&holds, dialect) {
            (Holds::PaddedText, _) => "CAST(? AS bpchar)".into(),
            (Holds::Enum(name), _) => format!("CAST(? AS {name})"),
            (Holds::Bool, _) => "CAST(? AS boolean)".into(),
            (Holds::Uuid, Dialect::Postgres) => "CAST(? AS uuid)".into(),
            _ => "?".into(),
        };
        Ok(Self { name: name.to_owned(), quoted: quoted(name, dialect), holds, slot })
    }

    /// `column = ?`
    fn is(&self) -> String {
        format!("{} = {}", self.quoted, self.slot)
    }

    pub(super) fn value(&self, value: &RowValue) -> Result<Value<'static>> {
        Ok(match value.fitted(&self.name, &self.holds)? {
            RowValue::Int(value) => value.into(),
            RowValue::Text(text) if self.holds == Holds::UuidBytes => {
                Value::Bytes(text.parse::<uuid::Uuid>().ok().map(uuid::Uuid::into_bytes))
            }
            RowValue::Text(text) => text.into(),
        })
    }

    fn id_value(&self, id: &RowId) -> Value<'static> {
        match id {
            RowId::Int(id) => (*id).into(),
            RowId::Uuid(id) if self.holds == Holds::UuidBytes => Value::Bytes(Some(id.into_bytes())),
            id => id.to_string().into(),
        }
    }
}

impl Sql {
    pub(super) fn new(guard: &Guard, catalogue: &Catalogue, dialect: Dialect) -> Result<Self> {
        let field = |name: &str| Field::of(name, catalogue, dialect);
        let given = |value: &Option<RowValue>, name: &str| {
            value.clone().ok_or_else(|| Error::invalid(name.to_owned(), "must be given"))
        };
        Ok(Self {
            dialect,
            table: guard.quoted_table(dialect),
            id: field(&guard.id_field)?,
            status: field(&guard.status_field)?,
            user: guard.user_field.as_deref().map(field).transpose()?,
            success: given(&guard.success_value, "success_value")?,
            fail: given(&guard.fail_value, "fail_value")?,
            hint: Arc::default(),
        })
    }

    pub(super) fn success(&self) -> Result<Value<'static>> {
        self.status.value(&self.success)
    }

    pub(super) fn fail(&self) -> Result<Value<'static>> {
        self.status.value(&self.fail)
    }

    pub(super) fn fail_text(&self) -> String {
        self.fail.to_string()
    }

    pub(super) fn id_of(&self, id: &RowId) -> Value<'static> {
        self.id.id_value(id)
    }

    pub(super) fn fit(&self, id: &RowId) -> Result<RowId> {
        id.fitted(&self.id.name, &self.id.holds)
    }

    /// The local datetime of seconds since 1970.
    pub(super) fn at(&self, seconds: &str) -> String {
        match self.dialect {
            Dialect::Sqlite => format!("datetime({seconds}, 'unixepoch', 'localtime')"),
            Dialect::Postgres => format!("CAST(to_timestamp({seconds}) AS timestamp)"),
            Dialect::MySql => format!("FROM_UNIXTIME({seconds})"),
        }
    }

    /// Seconds that the database can make a datetime of.
    pub(super) fn time(&self, seconds: Seconds) -> Value<'static> {
        let last = if self.dialect == Dialect::MySql { LAST } else { seconds };
        seconds.min(last).into()
    }

    /// A local datetime as seconds since 1970.
    pub(super) fn epoch(&self, column: &str) -> String {
        match self.dialect {
            Dialect::Sqlite => format!("CAST(strftime('%s', {column}, 'utc') AS INTEGER)"),
            Dialect::Postgres => format!("CAST(floor(EXTRACT(EPOCH FROM CAST({column} AS timestamptz))) AS bigint)"),
            Dialect::MySql => format!("CAST(UNIX_TIMESTAMP({column}) AS SIGNED)"),
        }
    }

    /// A datetime as `yyyy-MM-dd HH:mm:ss`.
    pub(super) fn datetime_text(&self, column: &str) -> String {
        match self.dialect {
            Dialect::Sqlite => format!("strftime('%Y-%m-%d %H:%M:%S', {column})"),
            Dialect::Postgres => format!("to_char({column}, 'YYYY-MM-DD HH24:MI:SS')"),
            Dialect::MySql => format!("DATE_FORMAT({column}, '%Y-%m-%d %H:%i:%s')"),
        }
    }

    /// A column of any kind as text.
    pub(super) fn as_text(&self, column: &str, is_binary: bool) -> String {
        match (self.dialect, is_binary) {
            (Dialect::Sqlite | Dialect::MySql, true) => format!("hex({column})"),
            (Dialect::Postgres, true) => format!("encode({column}, 'hex')"),
            (Dialect::MySql, false) => format!("CAST({column} AS CHAR)"),
            (Dialect::Sqlite | Dialect::Postgres, false) => format!("CAST({column} AS TEXT)"),
        }
    }

    pub(super) fn id_text(&self) -> String {
        self.as_text(&self.id.quoted, self.id.holds == Holds::UuidBytes)
    }

    pub(super) fn read_id(&self, columns: &mut Columns<'_>) -> sqlx::Result<RowId> {
        RowId::read(columns.text()?, &self.id.holds).map_err(|e| sqlx::Error::Decode(e.to_string().into()))
    }

    pub(super) fn status_is(&self) -> String {
        self.status.is()
    }

    pub(super) fn id_is(&self) -> String {
        self.id.is()
    }

    pub(super) fn user_is(&self) -> Option<String> {
        self.user.as_ref().map(Field::is)
    }

    /// `id IN (?, …)`
    pub(super) fn id_in(&self, n: usize) -> String {
        format!("{} IN ({})", self.id.quoted, vec![&*self.id.slot; n].join(", "))
    }

    /// Rows of this code that have no start. (One code at a time: for two of them together SQLite may prefer to read the
    /// whole table.)
    pub(super) fn heal_start(code: i64) -> Condition {
        Condition::new(format!("err_status = {code} AND err_start_time IS NULL"))
    }

    /// Rows of this code whose business status is success.
    pub(super) fn heal_success(&self, code: i64) -> Result<Condition> {
        Ok(Condition::new(format!("err_status = {code} AND {}", self.status_is())).with(self.success()?))
    }

    /// Rows that are to be retried, as source 5 has it.
    pub(super) fn due(&self, now: Seconds) -> Result<Condition> {
        let sql = format!(
            "err_status = 4000 AND (err_next_retry_time IS NULL OR err_next_retry_time <= {}) AND {}",
            self.at("?"),
            self.status_is()
        );
        Ok(Condition::new(sql).with(self.time(now)).with(self.fail()?))
    }

    /// The same in two parts, each one range of the index: rows that were never retried, and rows whose time has come. (As one
    /// condition all of a million due rows may be read to find the first.)
    pub(super) fn due_parts(&self, now: Seconds) -> Result<[Condition; 2]> {
        let never = format!("err_status = 4000 AND err_next_retry_time IS NULL AND {}", self.status_is());
        let come = format!("err_status = 4000 AND err_next_retry_time <= {} AND {}", self.at("?"), self.status_is());
        let (never, come) = (Condition::new(never), Condition::new(come).with(self.time(now)));
        Ok([never.with(self.fail()?), come.with(self.fail()?)])
    }

    /// Rows whose time is used up. (The database may know no datetime so long ago; then they are not.)
    pub(super) fn timed_out(&self, now: Seconds, timeout: Seconds) -> Condition {
        let since = self.at("? - COALESCE(err_timeout, ?)");
        let sql = format!("err_status = 4000 AND err_start_time <= {since}");
        Condition::new(sql).with(self.time(now)).with(timeout.into())
    }

    /// Rows that people are to be told of.
    pub(super) fn to_tell(&self, now: Seconds) -> Result<Condition> {
        let sql = format!(
            "err_status = 4001 AND (err_next_remind_staff_time IS NULL OR err_next_remind_staff_time < {}) AND {}",
            self.at("?"),
            self.status_is()
        );
        Ok(Condition::new(sql).with(self.time(now)).with(self.fail()?))
    }

    /// From now on scans use this index.
    pub(super) fn use_index(&self, name: Option<&str>) {
        let hint = name.map(|name| format!("INDEXED BY {}", quoted(&name.replace('"', "\"\""), self.dialect)));
        *self.hint.write().unwrap_or_else(PoisonError::into_inner) = hint.unwrap_or_default();
    }

    /// Some rows of a scan: these columns of them.
    pub(super) fn scan(&self, columns: &str, condition: &Condition, order: &str, limit: usize) -> Query<'static> {
        let hint = self.hint.read().unwrap_or_else(PoisonError::into_inner);
        let sql = format!("SELECT {columns} FROM {} {hint} WHERE {} {order} LIMIT {limit}", self.table, condition.sql);
        query(sql).bind_all(condition.values.clone())
    }

    /// Some rows: these columns of them.
    pub(super) fn select(&self, columns: &str, condition: &Condition, order: &str, limit: usize) -> Query<'static> {
        let sql = format!("SELECT {columns} FROM {} WHERE {} {order} LIMIT {limit}", self.table, condition.sql);
        query(sql).bind_all(condition.values.clone())
    }

    pub(super) fn count(&self, condition: &Condition) -> Query<'static> {
        let sql = format!("SELECT COUNT(*) FROM {} WHERE {}", self.table, condition.sql);
        query(sql).bind_all(condition.values.clone())
    }

    /// No further than that.
    pub(super) fn count_up_to(&self, condition: &Condition, most: u64) -> Query<'static> {
        let some = format!("SELECT 1 AS n FROM {} WHERE {} LIMIT {most}", self.table, condition.sql);
        query(format!("SELECT COUNT(*) FROM ({some}) x")).bind_all(condition.values.clone())
    }

    /// Changes one row, if it still is as it must be.
    pub(super) fn update(&self, set: &Condition, id: &RowId, condition: &Condition) -> Query<'static> {
        let sql = format!("UPDATE {} SET {} WHERE {} AND ({})", self.table, set.sql, self.id_is(), condition.sql);
        query(sql).bind_all(set.values.clone()).bind(self.id_of(id)).bind_all(condition.values.clone())
    }

    /// Changes many rows, those that still are as they must be.
    pub(super) fn update_all(&self, set: &Condition, ids: &[RowId], condition: &Condition) -> Query<'static> {
        let (table, ids_in) = (&self.table, self.id_in(ids.len()));
        let sql = format!("UPDATE {table} SET {} WHERE {ids_in} AND ({})", set.sql, condition.sql);
        let values = ids.iter().map(|id| self.id_of(id));
        query(sql).bind_all(set.values.clone()).bind_all(values).bind_all(condition.values.clone())
    }

    /// The status column becomes success if it still is failure.
    pub(super) fn succeed_if_failed(&self) -> Result<Condition> {
        let (status, slot) = (&self.status.quoted, &self.status.slot);
        let sql = format!("{status} = CASE WHEN {} THEN {slot} ELSE {status} END", self.status_is());
        Ok(Condition::new(sql).with(self.fail()?).with(self.success()?))
    }

    pub(super) fn succeed(&self) -> Result<Condition> {
        Ok(Condition::new(self.status_is()).with(self.success()?))
    }
}

/// A part of a statement with its values.
#[derive(Clone, Debug)]
pub(super) struct Condition {
    pub(super) sql: String,
    pub(super) values: Vec<Value<'static>>,
}

impl Condition {
    pub(super) fn new(sql: impl Into<String>) -> Self {
        Self { sql: sql.into(), values: Vec::new() }
    }

    pub(super) fn with(mut self, value: Value<'static>) -> Self {
        self.values.push(value);
        self
    }

    /// Both: conditions with ` AND `, assignments with `, ` between.
    pub(super) fn then(mut self, between: &str, other: Self) -> Self {
        self.sql = format!("{}{between}{}", self.sql, other.sql);
        self.values.extend(other.values);
        self
    }
}
