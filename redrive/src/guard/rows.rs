//! Whole rows of other people's tables, as JSON.
//!
//! Integers are numbers, datetimes are `yyyy-MM-dd HH:mm:ss`, decimals are text so that no digit is lost, bytes are hex.

use serde_json::{Map, Value as Json};

use crate::store::db::{Dialect, Row};

use super::catalogue::{Catalogue, Column};
use super::sql::Sql;

/// What a column looks like in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Int,
    Float,
    Bool,
    Datetime,
    Bytes,
    Bits,
    Text,
    /// SQLite: whatever this value is.
    Any,
}

/// The columns of a table and how they are read.
#[derive(Clone, Debug)]
pub(super) struct Shapes(Vec<(String, Shape)>);

impl Shapes {
    pub(super) fn of(catalogue: &Catalogue, dialect: Dialect) -> Self {
        // A question mark would be taken for a value.
        let readable = catalogue.columns.iter().filter(|column| !column.name.contains('?'));
        Self(readable.map(|column| (column.name.clone(), shape(column, dialect))).collect())
    }

    /// What to select; [`read`](Self::read) reads it.
    pub(super) fn select(&self, sql: &Sql) -> String {
        let columns = self.0.iter().map(|(name, shape)| {
            let column = escaped(name, sql.dialect);
            match shape {
                Shape::Datetime => sql.datetime_text(&column),
                Shape::Bytes => sql.as_text(&column, true),
                Shape::Bits => sql.as_text(&format!("({column} + 0)"), false),
                Shape::Any => format!(
                    "CASE typeof({column}) WHEN 'blob' THEN 't' || hex({column}) ELSE \
                     substr(typeof({column}), 1, 1) || CAST({column} AS TEXT) END"
                ),
                Shape::Int | Shape::Float | Shape::Bool | Shape::Text => sql.as_text(&column, false),
            }
        });
        columns.collect::<Vec<_>>().join(", ")
    }

    /// Reads what was selected, after `skip` other columns.
    pub(super) fn read(&self, row: &Row, skip: usize) -> sqlx::Result<Map<String, Json>> {
        let mut c = row.columns().skip(skip);
        self.0.iter().map(|(name, shape)| Ok((name.clone(), json(c.opt_text()?, *shape)))).collect()
    }
}

fn shape(column: &Column, dialect: Dialect) -> Shape {
    let word = column.kind.split(['(', ' ']).next().unwrap_or_default();
    match (dialect, word) {
        (Dialect::Sqlite, _) => Shape::Any,
        (_, "smallint" | "integer" | "bigint" | "tinyint" | "mediumint" | "int" | "year") => Shape::Int,
        (_, "real" | "double" | "float") => Shape::Float,
        (_, "boolean") => Shape::Bool,
        (_, "timestamp" | "datetime") => Shape::Datetime,
        (Dialect::MySql, "bit") => Shape::Bits,
        (_, "bytea" | "binary" | "varbinary" | "tinyblob" | "blob" | "mediumblob" | "longblob" | "geometry") => {
            Shape::Bytes
        }
        _ => Shape::Text,
    }
}

/// A name from the catalogue, which may have anything in it.
fn escaped(name: &str, dialect: Dialect) -> String {
    match dialect {
        Dialect::MySql => format!("`{}`", name.replace('`', "``")),
        Dialect::Sqlite | Dialect::Postgres => format!("\"{}\"", name.replace('"', "\"\"")),
    }
}

fn json(text: Option<&str>, shape: Shape) -> Json {
    let Some(text) = text else { return Json::Null };
    match shape {
        Shape::Int | Shape::Bits => integer(text),
        Shape::Float => float(text),
        Shape::Bool => Json::Bool(text == "true"),
        Shape::Datetime | Shape::Bytes | Shape::Text => text.into(),
        Shape::Any => match text.split_at_checked(1) {
            Some(("i", number)) => integer(number),
            Some(("r", number)) => float(number),
            Some((_, text)) => text.into(),
            None => Json::Null,
        },
    }
}

fn integer(text: &str) -> Json {
    let signed = text.parse::<i64>().map(Json::from);
    signed.or_else(|_| text.parse::<u64>().map(Json::from)).unwrap_or_else(|_| text.into())
}

/// What JSON has no number for (NaN) stays text.
fn float(text: &str) -> Json {
    text.parse::<f64>().ok().and_then(serde_json::Number::from_f64).map_or_else(|| text.into(), Json::Number)
}
