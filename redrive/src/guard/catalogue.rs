//! What a database knows of a table: its columns, what they hold, what they are for, and the index for the scans.

use std::collections::BTreeMap;

use crate::error::Result;
use crate::store::db::{Connection, Dialect, Row, query};
use crate::store::pool::Use;
use crate::store::retry::{Scope, retrying};

use super::business::Db;
use super::columns::ERR_COLUMNS;
use super::config::Guard;
use super::value::Holds;

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    /// As the database calls it.
    pub(super) kind: String,
    /// What values it takes, if it is of a kind that ids and statuses can have.
    pub(super) holds: Option<Holds>,
    pub(super) comment: Option<String>,
    /// If it may be NULL. A primary key of SQLite is not called so.
    pub(super) is_nullable: bool,
}

/// A primary key or unique index, by its columns. A part of a column, or an expression, is no name of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UniqueKey {
    pub(super) name: String,
    pub(super) columns: Vec<String>,
}

/// A table, as the database knows it.
#[derive(Clone, Debug, Default)]
pub(super) struct Catalogue {
    pub(super) columns: Vec<Column>,
    pub(super) unique_keys: Vec<UniqueKey>,
    /// The index for the scans, by its name.
    pub(super) index: Option<String>,
}

impl Catalogue {
    pub(super) async fn read(db: &Db, guard: &Guard) -> Result<Self> {
        let doing = format!("looking at the table {}", guard.table);
        retrying!(db.pools(), Use::Read, Scope::Statement, &doing, |c, _| {
            let columns = read_columns(c, guard).await?;
            if columns.is_empty() {
                return Ok(Self::default());
            }
            Ok(Self { columns, unique_keys: unique_keys_of(c, guard).await?, index: index_of(c, guard).await? })
        })
    }

    pub(super) fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    pub(super) fn names(&self) -> String {
        self.columns.iter().map(|column| &*column.name).collect::<Vec<_>>().join(", ")
    }

    /// What the columns are, for people: as the database says, else as the guard does.
    pub(super) fn comments(&self, guard: &Guard) -> BTreeMap<String, String> {
        let given = guard.comments.iter().cloned();
        let known = ERR_COLUMNS.iter().map(|c| (c.name.to_owned(), c.comment.to_owned()));
        let mut comments: BTreeMap<_, _> = known.chain(given).filter(|(name, _)| self.column(name).is_some()).collect();
        for column in &self.columns {
            if let Some(comment) = column.comment.as_ref().filter(|comment| !comment.is_empty()) {
                comments.insert(column.name.clone(), comment.clone());
            }
        }
        comments
    }
}

impl Guard {
    /// The schema, if one was given, and the table's bare name.
    pub(super) fn parts(&self) -> (Option<&str>, &str) {
        match self.table.split_once('.') {
            Some((schema, name)) => (Some(schema), name),
            None => (None, &self.table),
        }
    }

    pub(super) fn quoted_table(&self, dialect: Dialect) -> String {
        self.table.split('.').map(|part| quoted(part, dialect)).collect::<Vec<_>>().join(".")
    }
}

/// A name that was checked ([`Guard::validate`]), in the database's quotes.
pub(super) fn quoted(name: &str, dialect: Dialect) -> String {
    match dialect {
        Dialect::MySql => format!("`{name}`"),
        Dialect::Sqlite | Dialect::Postgres => format!("\"{name}\""),
    }
}

async fn read_columns(c: &mut Connection<'_>, guard: &Guard) -> sqlx::Result<Vec<Column>> {
    let (schema, name) = guard.parts();
    let dialect = c.dialect();
    let rows = match dialect {
        Dialect::Sqlite => {
            let sql = "SELECT name, lower(type), NULL, NULL, \"notnull\" = 0 AND pk = 0 FROM pragma_table_info(?, ?)";
            c.rows(query(sql).bind(name).bind(schema)).await?
        }
        Dialect::Postgres => {
            let sql = "SELECT CAST(a.attname AS text), format_type(COALESCE(b.oid, t.oid), a.atttypmod), \
                 CAST(COALESCE(b.typtype, t.typtype) AS text), col_description(a.attrelid, a.attnum), \
                 CAST(NOT (a.attnotnull OR t.typnotnull) AS int) \
                 FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid \
                 LEFT JOIN pg_type b ON b.oid = t.typbasetype AND t.typtype = 'd' \
                 WHERE a.attrelid = to_regclass(?) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";
            c.rows(query(sql).bind(guard.quoted_table(dialect))).await?
        }
        Dialect::MySql => {
            let sql = "SELECT CAST(column_name AS CHAR), CAST(column_type AS CHAR), NULL, CAST(column_comment AS CHAR), \
                 CAST(is_nullable = 'YES' AS SIGNED) \
                 FROM information_schema.columns \
                 WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ? ORDER BY ordinal_position";
            c.rows(query(sql).bind(schema).bind(name)).await?
        }
    };
    rows.iter().map(|row| read_column(row, dialect)).collect()
}

fn read_column(row: &Row, dialect: Dialect) -> sqlx::Result<Column> {
    let mut c = row.columns();
    let (name, kind) = (c.text()?.to_owned(), c.text()?.to_owned());
    let is_enum = c.opt_text()? == Some("e");
    let holds = match dialect {
        Dialect::Sqlite => sqlite_holds(&kind),
        Dialect::Postgres if is_enum => Some(Holds::Enum(kind.clone())),
        Dialect::Postgres => postgres_holds(&kind),
        Dialect::MySql => mysql_holds(&kind),
    };
    let comment = c.opt_text()?.map(str::to_owned);
    Ok(Column { name, kind, holds, comment, is_nullable: c.int()? != 0 })
}

/// By SQLite's rules of affinity.
fn sqlite_holds(kind: &str) -> Option<Holds> {
    let has = |parts: &[&str]| parts.iter().any(|part| kind.contains(part));
    if has(&["int", "bool"]) {
        Some(Holds::Int)
    } else if has(&["char", "clob", "text", "uuid"]) {
        Some(Holds::Text)
    } else {
        has(&["blob"]).then_some(Holds::UuidBytes)
    }
}

fn postgres_holds(kind: &str) -> Option<Holds> {
    match kind {
        "smallint" | "integer" | "bigint" => Some(Holds::Int),
        "text" | "citext" | "name" => Some(Holds::Text),
        "uuid" => Some(Holds::Uuid),
        "boolean" => Some(Holds::Bool),
        kind if kind.starts_with("character varying") => Some(Holds::Text),
        kind if kind.starts_with("character") => Some(Holds::PaddedText),
        kind if kind.starts_with("numeric") && kind.ends_with(",0)") => Some(Holds::Int),
        _ => None,
    }
}

fn mysql_holds(kind: &str) -> Option<Holds> {
    let word = kind.split(['(', ' ']).next().unwrap_or_default();
    match word {
        "tinyint" | "smallint" | "mediumint" | "int" | "bigint" => Some(Holds::Int),
        "char" | "varchar" | "tinytext" | "text" | "mediumtext" | "longtext" | "enum" => Some(Holds::Text),
        "uuid" => Some(Holds::Uuid),
        "binary" if kind == "binary(16)" => Some(Holds::UuidBytes),
        "decimal" if kind.contains(",0)") => Some(Holds::Int),
        _ => None,
    }
}

/// The primary key and the unique indexes of all rows, each with its columns in their order.
async fn unique_keys_of(c: &mut Connection<'_>, guard: &Guard) -> sqlx::Result<Vec<UniqueKey>> {
    let (schema, name) = guard.parts();
    let rows = match c.dialect() {
        // The key of a table whose id is the number of its rows has no index.
        Dialect::Sqlite => {
            let sql = "SELECT key, column FROM (SELECT '' AS key, pk AS place, name AS column FROM pragma_table_info(?, ?) WHERE pk > 0 \
                 UNION ALL SELECT l.name, i.seqno, COALESCE(i.name, '(expression)') \
                 FROM pragma_index_list(?, ?) AS l, pragma_index_info(l.name, ?) AS i WHERE l.\"unique\" = 1 AND l.partial = 0) \
                 ORDER BY key, place";
            let sql = query(sql).bind(name).bind(schema).bind(name).bind(schema).bind(schema);
            c.rows(sql).await?
        }
        Dialect::Postgres => {
            let sql = "SELECT CAST(n.relname AS text), COALESCE(CAST(a.attname AS text), '(expression)') \
                 FROM pg_index i JOIN pg_class n ON n.oid = i.indexrelid \
                 CROSS JOIN LATERAL generate_series(0, i.indnkeyatts - 1) AS place \
                 LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[place] AND a.attnum > 0 \
                 WHERE i.indrelid = to_regclass(?) AND i.indisunique AND i.indisvalid AND i.indpred IS NULL \
                 ORDER BY NOT i.indisprimary, 1, place";
            c.rows(query(sql).bind(guard.quoted_table(Dialect::Postgres))).await?
        }
        Dialect::MySql => {
            let sql = "SELECT CAST(index_name AS CHAR), \
                 CAST(CONCAT(COALESCE(column_name, '(expression)'), COALESCE(CONCAT('(', sub_part, ')'), '')) AS CHAR) \
                 FROM information_schema.statistics \
                 WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ? AND non_unique = 0 \
                 ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index";
            c.rows(query(sql).bind(schema).bind(name)).await?
        }
    };
    let mut keys: Vec<UniqueKey> = Vec::new();
    for row in &rows {
        let mut c = row.columns();
        let (name, column) = (c.text()?.to_owned(), c.text()?.to_owned());
        match keys.last_mut() {
            Some(key) if key.name == name => key.columns.push(column),
            _ => keys.push(UniqueKey { name, columns: vec![column] }),
        }
    }
    Ok(keys)
}

/// An index that begins with `err_status, err_next_retry_time`.
async fn index_of(c: &mut Connection<'_>, guard: &Guard) -> sqlx::Result<Option<String>> {
    let (schema, name) = guard.parts();
    let rows = match c.dialect() {
        Dialect::Sqlite => {
            let sql = "SELECT l.name FROM pragma_index_list(?, ?) AS l, pragma_index_info(l.name, ?) AS a, pragma_index_info(l.name, ?) AS b \
                 WHERE l.partial = 0 AND a.seqno = 0 AND a.name = 'err_status' AND b.seqno = 1 AND b.name = 'err_next_retry_time'";
            c.rows(query(sql).bind(name).bind(schema).bind(schema).bind(schema)).await?
        }
        Dialect::Postgres => {
            let sql = "SELECT CAST(n.relname AS text) FROM pg_index i JOIN pg_class n ON n.oid = i.indexrelid \
                 JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] \
                 JOIN pg_attribute b ON b.attrelid = i.indrelid AND b.attnum = i.indkey[1] \
                 WHERE i.indrelid = to_regclass(?) AND i.indisvalid AND i.indpred IS NULL \
                 AND a.attname = 'err_status' AND b.attname = 'err_next_retry_time'";
            c.rows(query(sql).bind(guard.quoted_table(Dialect::Postgres))).await?
        }
        Dialect::MySql => {
            let sql = "SELECT CAST(a.index_name AS CHAR) FROM information_schema.statistics a JOIN information_schema.statistics b \
                 ON b.table_schema = a.table_schema AND b.table_name = a.table_name AND b.index_name = a.index_name \
                 WHERE a.table_schema = COALESCE(?, DATABASE()) AND a.table_name = ? AND a.seq_in_index = 1 \
                 AND a.column_name = 'err_status' AND b.seq_in_index = 2 AND b.column_name = 'err_next_retry_time'";
            c.rows(query(sql).bind(schema).bind(name)).await?
        }
    };
    rows.first().map(|row| row.columns().text().map(str::to_owned)).transpose()
}
