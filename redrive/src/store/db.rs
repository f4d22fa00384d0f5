//! Three databases behind one face: connections, queries, rows, transactions.
//!
//! SQL is written once, with `?` for values; [`Query`] turns that into `$1` for PostgreSQL. Values are always
//! bound. What differs between the databases is a `match` on [`Dialect`] beside the statement; this file is
//! the only one that knows three drivers.

use std::borrow::Cow;

use sqlx::{Arguments, AssertSqlSafe, Row as _, ValueRef};

use crate::error::{DatabaseError, Error, Fault};

/// Which SQL is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// SQLite.
    Sqlite,
    /// PostgreSQL.
    Postgres,
    /// MySQL and MariaDB.
    MySql,
}

/// A connection that is borrowed for a while: one of ours, or the one under a caller's own transaction.
///
/// Anything that derefs to a sqlx connection turns into it:
///
/// ```
/// # async fn enqueue(store: &redrive::Store, pool: &sqlx::PgPool, task: redrive::NewTask) -> anyhow::Result<()> {
/// # let now = store.now().await?;
/// let mut tx = pool.begin().await?;
/// store.insert_in(&mut *tx, vec![task], now).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Connection<'c> {
    /// To SQLite.
    #[cfg(feature = "sqlite")]
    Sqlite(&'c mut sqlx::SqliteConnection),
    /// To PostgreSQL.
    #[cfg(feature = "postgres")]
    Postgres(&'c mut sqlx::PgConnection),
    /// To MySQL or MariaDB.
    #[cfg(feature = "mysql")]
    MySql(&'c mut sqlx::MySqlConnection),
}

#[cfg(feature = "sqlite")]
impl<'c> From<&'c mut sqlx::SqliteConnection> for Connection<'c> {
    fn from(c: &'c mut sqlx::SqliteConnection) -> Self {
        Self::Sqlite(c)
    }
}

#[cfg(feature = "postgres")]
impl<'c> From<&'c mut sqlx::PgConnection> for Connection<'c> {
    fn from(c: &'c mut sqlx::PgConnection) -> Self {
        Self::Postgres(c)
    }
}

#[cfg(feature = "mysql")]
impl<'c> From<&'c mut sqlx::MySqlConnection> for Connection<'c> {
    fn from(c: &'c mut sqlx::MySqlConnection) -> Self {
        Self::MySql(c)
    }
}

impl<'c> From<&'c mut Tx> for Connection<'c> {
    fn from(tx: &'c mut Tx) -> Self {
        tx.connection()
    }
}

/// An open transaction; rolled back if it is dropped without [`commit`](Self::commit).
#[derive(Debug)]
#[non_exhaustive]
pub enum Tx {
    /// On SQLite (BEGIN IMMEDIATE: it is the one writer until it ends).
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::Transaction<'static, sqlx::Sqlite>),
    /// On PostgreSQL.
    #[cfg(feature = "postgres")]
    Postgres(sqlx::Transaction<'static, sqlx::Postgres>),
    /// On MySQL or MariaDB.
    #[cfg(feature = "mysql")]
    MySql(sqlx::Transaction<'static, sqlx::MySql>),
}

/// Does the same for whichever database it is.
macro_rules! each {
    ($enum:ident, $value:expr, $inner:ident => $body:expr) => {
        match $value {
            #[cfg(feature = "sqlite")]
            $enum::Sqlite($inner) => $body,
            #[cfg(feature = "postgres")]
            $enum::Postgres($inner) => $body,
            #[cfg(feature = "mysql")]
            $enum::MySql($inner) => $body,
        }
    };
}
pub(crate) use each;

impl Tx {
    /// Its connection, for statements of one's own.
    pub fn connection(&mut self) -> Connection<'_> {
        each!(Tx, self, tx => Connection::from(&mut **tx))
    }

    /// Commits it. If this fails with a lost connection, whether it was committed is not known.
    pub async fn commit(self) -> crate::Result<()> {
        each!(Tx, self, tx => tx.commit().await).map_err(|e| database_error("committing", e))
    }

    /// Undoes it.
    pub async fn rollback(self) -> crate::Result<()> {
        each!(Tx, self, tx => tx.rollback().await).map_err(|e| database_error("rolling back", e))
    }
}

impl Connection<'_> {
    /// Which SQL it speaks.
    pub fn dialect(&self) -> Dialect {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => Dialect::Sqlite,
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => Dialect::Postgres,
            #[cfg(feature = "mysql")]
            Self::MySql(_) => Dialect::MySql,
        }
    }

    /// Runs a statement; how many rows it changed (on MySQL: matched).
    pub(crate) async fn execute(&mut self, query: Query<'_>) -> sqlx::Result<u64> {
        let (sql, args) = query.for_dialect(self.dialect());
        tracing::trace!(target: "redrive::sql", "{sql}");
        each!(Connection, self, c => {
            let args = arguments(&**c, args)?;
            Ok(sqlx::query_with(AssertSqlSafe(sql), args).execute(&mut **c).await?.rows_affected())
        })
    }

    /// Runs a query; all its rows.
    pub(crate) async fn rows(&mut self, query: Query<'_>) -> sqlx::Result<Vec<Row>> {
        let (sql, args) = query.for_dialect(self.dialect());
        tracing::trace!(target: "redrive::sql", "{sql}");
        each!(Connection, self, c => {
            let args = arguments(&**c, args)?;
            let rows = sqlx::query_with(AssertSqlSafe(sql), args).fetch_all(&mut **c).await?;
            Ok(rows.into_iter().map(Row::from).collect())
        })
    }

    /// Runs a query; its first row, if there is one.
    pub(crate) async fn row(&mut self, query: Query<'_>) -> sqlx::Result<Option<Row>> {
        Ok(self.rows(query).await?.into_iter().next())
    }

    /// Runs statements without values, one after the other: schema changes.
    pub(crate) async fn script(&mut self, sql: String) -> sqlx::Result<()> {
        each!(Connection, self, c => { sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut **c).await?; });
        Ok(())
    }
}

/// A value to be bound, or a column of them (PostgreSQL's UNNEST only).
#[derive(Clone, Debug)]
pub(crate) enum Value<'q> {
    Int(Option<i64>),
    Text(Option<Cow<'q, str>>),
    Bytes(Option<[u8; 16]>),
    Ints(Vec<Option<i64>>),
    Texts(Vec<Option<Cow<'q, str>>>),
    Hashes(Vec<Option<[u8; 16]>>),
}

impl Value<'_> {
    /// About how much of a statement it takes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Text(Some(text)) => text.len(),
            _ => 16,
        }
    }
}

macro_rules! value_from {
    ($($from:ty, $v:ident => $to:expr;)*) => { $(
        impl<'q> From<$from> for Value<'q> { fn from($v: $from) -> Self { $to } }
    )* };
}

value_from! {
    i64, v => Value::Int(Some(v));
    i32, v => Value::Int(Some(v.into()));
    u32, v => Value::Int(Some(v.into()));
    u8, v => Value::Int(Some(v.into()));
    Option<i64>, v => Value::Int(v);
    &'q str, v => Value::Text(Some(Cow::Borrowed(v)));
    Option<&'q str>, v => Value::Text(v.map(Cow::Borrowed));
    String, v => Value::Text(Some(Cow::Owned(v)));
    Option<String>, v => Value::Text(v.map(Cow::Owned));
    crate::Timestamp, v => Value::Int(Some(v.as_millis()));
    Option<crate::Timestamp>, v => Value::Int(v.map(crate::Timestamp::as_millis));
    crate::TaskId, v => Value::Int(Some(v.as_i64()));
    Option<crate::TaskId>, v => Value::Int(v.map(crate::TaskId::as_i64));
    crate::NodeNumber, v => Value::Int(Some(v.0));
    crate::Lane, v => Value::Int(Some(v.0.into()));
    crate::task::KeyHash, v => Value::Bytes(Some(v.0));
    Option<crate::task::KeyHash>, v => Value::Bytes(v.map(|h| h.0));
}

/// Values as this connection's driver wants them.
fn arguments<C: sqlx::Connection>(
    _: &C,
    values: Vec<Value<'_>>,
) -> sqlx::Result<<C::Database as sqlx::Database>::Arguments>
where
    for<'t> Option<i64>: sqlx::Encode<'t, C::Database> + sqlx::Type<C::Database>,
    for<'t> Option<&'t str>: sqlx::Encode<'t, C::Database> + sqlx::Type<C::Database>,
    for<'t> Option<&'t [u8]>: sqlx::Encode<'t, C::Database> + sqlx::Type<C::Database>,
    <C::Database as sqlx::Database>::Arguments: BindArrays,
{
    let mut args = <C::Database as sqlx::Database>::Arguments::default();
    args.reserve(values.len(), values.len() * 8);
    for value in values {
        match value {
            Value::Int(v) => args.add(v),
            Value::Text(v) => args.add(v.as_deref()),
            Value::Bytes(v) => args.add(v.as_ref().map(<[u8; 16]>::as_slice)),
            arrays => args.add_array(arrays),
        }
        .map_err(sqlx::Error::Encode)?;
    }
    Ok(args)
}

type Bound = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Whole columns as one value: PostgreSQL has them, the others are never asked.
trait BindArrays {
    fn add_array(&mut self, _: Value<'_>) -> Bound {
        Err("arrays are for PostgreSQL only".into())
    }
}

#[cfg(feature = "sqlite")]
impl BindArrays for sqlx::sqlite::SqliteArguments {}
#[cfg(feature = "mysql")]
impl BindArrays for sqlx::mysql::MySqlArguments {}
#[cfg(feature = "postgres")]
impl BindArrays for sqlx::postgres::PgArguments {
    fn add_array(&mut self, value: Value<'_>) -> Bound {
        match value {
            Value::Ints(v) => self.add(v),
            Value::Texts(v) => self.add(v.iter().map(Option::as_deref).collect::<Vec<_>>()),
            Value::Hashes(v) => self.add(v.iter().map(|h| h.as_ref().map(<[u8; 16]>::as_slice)).collect::<Vec<_>>()),
            Value::Int(_) | Value::Text(_) | Value::Bytes(_) => Err("not an array".into()),
        }
    }
}

/// A statement with its values.
#[derive(Clone, Debug)]
pub(crate) struct Query<'q> {
    sql: Cow<'static, str>,
    values: Vec<Value<'q>>,
}

/// A statement: `?` stands for each value, in order.
pub(crate) fn query<'q>(sql: impl Into<Cow<'static, str>>) -> Query<'q> {
    Query { sql: sql.into(), values: Vec::new() }
}

impl<'q> Query<'q> {
    pub(crate) fn bind(mut self, value: impl Into<Value<'q>>) -> Self {
        self.values.push(value.into());
        self
    }

    pub(crate) fn bind_all(mut self, values: impl IntoIterator<Item = impl Into<Value<'q>>>) -> Self {
        self.values.extend(values.into_iter().map(Into::into));
        self
    }

    /// Values for what will be put before it.
    pub(crate) fn bind_first(mut self, values: impl IntoIterator<Item = Value<'q>>) -> Self {
        self.values.splice(0..0, values);
        self
    }

    /// With something before it: EXPLAIN.
    pub(crate) fn prefixed(mut self, prefix: &str) -> Self {
        self.sql = Cow::Owned(format!("{prefix} {}", self.sql));
        self
    }

    pub(crate) fn followed_by(mut self, suffix: &str) -> Self {
        self.sql = Cow::Owned(format!("{} {suffix}", self.sql));
        self
    }

    fn for_dialect(self, dialect: Dialect) -> (String, Vec<Value<'q>>) {
        let sql = match dialect {
            Dialect::Postgres => numbered(&self.sql),
            Dialect::Sqlite | Dialect::MySql => self.sql.into_owned(),
        };
        (sql, self.values)
    }
}

/// `?` becomes `$1`, `$2` … None of our statements has a question mark in a literal.
fn numbered(sql: &str) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(sql.len() + 32);
    for (n, part) in sql.split('?').enumerate() {
        if n > 0 {
            _ = write!(out, "${n}"); // writing to a String cannot fail
        }
        out.push_str(part);
    }
    out
}

/// One row of an answer.
pub(crate) enum Row {
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::sqlite::SqliteRow),
    #[cfg(feature = "postgres")]
    Postgres(sqlx::postgres::PgRow),
    #[cfg(feature = "mysql")]
    MySql(sqlx::mysql::MySqlRow),
}

#[cfg(feature = "sqlite")]
impl From<sqlx::sqlite::SqliteRow> for Row {
    fn from(row: sqlx::sqlite::SqliteRow) -> Self {
        Self::Sqlite(row)
    }
}
#[cfg(feature = "postgres")]
impl From<sqlx::postgres::PgRow> for Row {
    fn from(row: sqlx::postgres::PgRow) -> Self {
        Self::Postgres(row)
    }
}
#[cfg(feature = "mysql")]
impl From<sqlx::mysql::MySqlRow> for Row {
    fn from(row: sqlx::mysql::MySqlRow) -> Self {
        Self::MySql(row)
    }
}

impl Row {
    /// Reads the columns from left to right.
    pub(crate) fn columns(&self) -> Columns<'_> {
        Columns { row: self, next: 0 }
    }

    /// The first column.
    pub(crate) fn int(&self) -> sqlx::Result<i64> {
        self.columns().int()
    }
}

/// Reads a row from left to right.
#[derive(Clone)]
pub(crate) struct Columns<'r> {
    row: &'r Row,
    next: usize,
}

impl<'r> Columns<'r> {
    /// Passes over some.
    pub(crate) fn skip(mut self, columns: usize) -> Self {
        self.next += columns;
        self
    }

    pub(crate) fn int(&mut self) -> sqlx::Result<i64> {
        let i = self.next;
        self.opt_int()?.ok_or_else(|| null(i))
    }

    pub(crate) fn opt_int(&mut self) -> sqlx::Result<Option<i64>> {
        let i = self.next;
        self.next += 1;
        match self.row {
            #[cfg(feature = "sqlite")]
            Row::Sqlite(row) => row.try_get(i),
            // PostgreSQL's integers come in three widths and sqlx wants the exact one; the bytes say which.
            #[cfg(feature = "postgres")]
            Row::Postgres(row) => {
                let raw = row.try_get_raw(i)?;
                if raw.is_null() {
                    return Ok(None);
                }
                let bytes = raw.as_bytes().map_err(sqlx::Error::Decode)?;
                let mut wide = [if bytes.first().is_some_and(|b| *b > 127) { 0xff } else { 0 }; 8];
                wide.get_mut(8 - bytes.len().min(8)..).ok_or_else(|| null(i))?.copy_from_slice(bytes);
                Ok(Some(i64::from_be_bytes(wide)))
            }
            #[cfg(feature = "mysql")]
            Row::MySql(row) => row.try_get(i),
        }
    }

    pub(crate) fn text(&mut self) -> sqlx::Result<&'r str> {
        let i = self.next;
        self.opt_text()?.ok_or_else(|| null(i))
    }

    pub(crate) fn opt_text(&mut self) -> sqlx::Result<Option<&'r str>> {
        let i = self.next;
        self.next += 1;
        each!(Row, self.row, row => row.try_get(i))
    }

    /// The next value as text, whatever it is, where a database stores any value in any column.
    pub(crate) fn as_text(&self) -> Option<&'r str> {
        match self.row {
            #[cfg(feature = "sqlite")]
            Row::Sqlite(row) => row.try_get_unchecked(self.next).ok(),
            #[allow(unreachable_patterns, reason = "reachable with another database's cargo feature")]
            _ => None,
        }
    }

    pub(crate) fn hash(&mut self) -> sqlx::Result<[u8; 16]> {
        let i = self.next;
        self.next += 1;
        let bytes: &[u8] = each!(Row, self.row, row => row.try_get(i))?;
        bytes.try_into().map_err(|_| null(i))
    }
}

fn null(column: usize) -> sqlx::Error {
    sqlx::Error::Decode(format!("column {column} has no value of the kind that was expected").into())
}

/// Wraps what sqlx says with what was being done.
pub(crate) fn database_error(doing: impl Into<String>, e: sqlx::Error) -> Error {
    let fault = fault(&e);
    let message = match (&e, fault) {
        (sqlx::Error::PoolTimedOut, _) => {
            "no connection became free in time: the database does not answer, or all connections are in use (on SQLite, \
             which has one writer: an open transaction; inside your own use the *_in functions)"
                .to_owned()
        }
        (sqlx::Error::Database(d), Fault::Busy) if is_sqlite(d.as_ref()) => format!(
            "{}: another transaction holds SQLite's one write lock; if it is your own, use the *_in functions inside it",
            d.message()
        ),
        (sqlx::Error::Database(d), _) if is_out_of_statements(d.as_ref()) => format!(
            "{} (1461): raise max_prepared_stmt_count on the server, see \"Prepared statements\" in docs/operate/deployment.md",
            d.message()
        ),
        (sqlx::Error::Database(d), _) => match d.code() {
            Some(code) => format!("{} ({code})", d.message()),
            None => d.message().to_owned(),
        },
        _ => e.to_string(),
    };
    Error::Database { doing: doing.into(), source: DatabaseError { fault, message, source: Some(Box::new(e)) } }
}

fn is_sqlite(e: &dyn sqlx::error::DatabaseError) -> bool {
    #[cfg(feature = "sqlite")]
    return e.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some();
    #[cfg(not(feature = "sqlite"))]
    false
}

/// Whether MySQL takes no more prepared statements, of all its clients together.
fn is_out_of_statements(e: &dyn sqlx::error::DatabaseError) -> bool {
    #[cfg(feature = "mysql")]
    return e.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>().is_some_and(|e| e.number() == 1461);
    #[cfg(not(feature = "mysql"))]
    false
}

/// Whether PostgreSQL has waited for a table, which everybody waits for, and not for a row: of those it says which.
pub(crate) fn waits_for_table(e: &Error) -> bool {
    #[cfg(feature = "postgres")]
    if let Error::Database { source, .. } = e
        && let Some(sqlx::Error::Database(d)) = source.source.as_deref()
        && let Some(e) = d.try_downcast_ref::<sqlx::postgres::PgDatabaseError>()
    {
        return e.code() == "55P03" && e.r#where().is_none();
    }
    _ = e;
    false
}

/// What kind of trouble an error is. The codes are those of `facts`: PostgreSQL's SQLSTATE, MySQL's error
/// numbers, SQLite's extended result codes.
pub(crate) fn fault(e: &sqlx::Error) -> Fault {
    match e {
        sqlx::Error::Database(d) => database_fault(d.as_ref()),
        sqlx::Error::Io(io) => match io.kind() {
            std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::NotFound => Fault::Unavailable,
            _ => Fault::Disconnected,
        },
        sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => Fault::Disconnected,
        sqlx::Error::PoolTimedOut | sqlx::Error::BeginFailed => Fault::Unavailable,
        _ => Fault::Other,
    }
}

/// Whether a server refused to write because it is read-only: it was the primary, and is not any more.
pub(crate) fn is_read_only(e: &sqlx::Error) -> bool {
    let sqlx::Error::Database(d) = e else { return false };
    #[cfg(feature = "postgres")]
    if let Some(e) = d.try_downcast_ref::<sqlx::postgres::PgDatabaseError>() {
        return e.code() == "25006";
    }
    #[cfg(feature = "mysql")]
    if let Some(e) = d.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
        return matches!(e.number(), 1290 | 1836);
    }
    _ = d;
    false
}

fn database_fault(d: &dyn sqlx::error::DatabaseError) -> Fault {
    #[cfg(feature = "postgres")]
    if let Some(e) = d.try_downcast_ref::<sqlx::postgres::PgDatabaseError>() {
        return match e.code() {
            "40001" | "40P01" => Fault::Conflict,
            "55P03" => Fault::Busy,
            "57P01" | "57P02" | "57P05" => Fault::Disconnected,
            "57P03" | "25006" | "53300" | "53100" | "53200" => Fault::Unavailable, // 531, 532: no room left
            "23505" => Fault::Unique,
            "42P01" => Fault::NoTable,
            code if code.starts_with("08") => Fault::Disconnected,
            _ => Fault::Other,
        };
    }
    #[cfg(feature = "mysql")]
    if let Some(e) = d.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
        return match e.number() {
            1213 | 1020 | 3101 => Fault::Conflict, // 3101: group replication has rolled it back
            1205 => Fault::Busy,
            1047 | 1290 | 1836 | 1053 | 3100 => Fault::Unavailable, // 3100: group replication did not take it
            1461 => Fault::Unavailable, // no more prepared statements: smaller batches would need more of them
            1040 | 1129 | 1203 | 1226 | 1021 | 1114 => Fault::Unavailable, // no more connections; 1021, 1114: no room left
            2006 | 2013 | 1927 | 4031 => Fault::Disconnected,
            1062 => Fault::Unique,
            1146 => Fault::NoTable,
            _ => Fault::Other,
        };
    }
    let code = d.code().and_then(|c| c.parse::<i32>().ok()).unwrap_or_default();
    match code & 0xff {
        5 | 6 => Fault::Busy,     // BUSY, LOCKED
        13 => Fault::Unavailable, // FULL: no room left
        19 if d.is_unique_violation() => Fault::Unique,
        1 if d.message().starts_with("no such table") => Fault::NoTable,
        _ => Fault::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_marks_become_numbers() {
        assert_eq!(numbered("a = ? AND b IN (?, ?)"), "a = $1 AND b IN ($2, $3)");
    }
}
