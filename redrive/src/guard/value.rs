//! Ids and values of other people's tables.
//!
//! Rows are known by an integer, a text or a UUID. What is given is brought into the form that the column has (`"7"` is 7 in
//! a column of integers), or refused with a sentence: nothing is compared across types by the database.

use std::fmt;

use serde::{Serialize, Serializer};
use uuid::Uuid;

use crate::error::{Error, Result};

/// The id of a row. JSON has a number for an integer, else a string.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RowId {
    /// Of a column of integers.
    Int(i64),
    /// Of a column of text.
    Text(String),
    /// Of a column of UUIDs, whether the database has a type for them, or sixteen bytes.
    Uuid(Uuid),
}

/// What a status column or a user column holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RowValue {
    /// Text.
    Text(String),
    /// An integer.
    Int(i64),
}

/// What can be the id of a row in a [`GuardHandler`](super::GuardHandler): `i64`, `String`, `Uuid`, or [`RowId`] for
/// handlers that do not know before they run.
pub trait GuardId: Clone + Send + Sync + 'static {
    /// As it is in the table; an error says why it cannot be one.
    fn from_row(id: &RowId) -> std::result::Result<Self, String>;
    /// As it is in the table.
    fn to_row(&self) -> RowId;
}

/// What a column holds, as far as values for it are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    Int,
    Text,
    /// PostgreSQL's `char(n)`, which pads.
    PaddedText,
    Bool,
    /// PostgreSQL's enum of this (quoted) name.
    Enum(String),
    /// PostgreSQL's or MariaDB's own type.
    Uuid,
    /// Sixteen bytes.
    UuidBytes,
}

impl Holds {
    pub(crate) fn shown(&self) -> &'static str {
        match self {
            Self::Int => "integers",
            Self::Text | Self::PaddedText | Self::Enum(_) => "text",
            Self::Bool => "booleans",
            Self::Uuid | Self::UuidBytes => "UUIDs",
        }
    }

    fn is_text(&self) -> bool {
        matches!(self, Self::Text | Self::PaddedText | Self::Enum(_))
    }
}

impl RowId {
    /// The same as this column has it.
    pub(crate) fn fitted(&self, column: &str, holds: &Holds) -> Result<Self> {
        let wrong = || Error::invalid(column, format!("holds {}: {self} is none", holds.shown()));
        match (self, holds) {
            (Self::Int(_), Holds::Int) | (Self::Uuid(_), Holds::Uuid | Holds::UuidBytes) => Ok(self.clone()),
            (Self::Text(text), Holds::Int) => text.trim().parse().map(Self::Int).map_err(|_| wrong()),
            (Self::Text(text), Holds::Uuid | Holds::UuidBytes) => {
                text.trim().parse().map(Self::Uuid).map_err(|_| wrong())
            }
            (Self::Text(text), holds) if holds.is_text() && text.contains('\0') => Err(wrong()),
            (_, holds) if holds.is_text() => Ok(Self::Text(self.to_string())),
            _ => Err(wrong()),
        }
    }

    /// What the database said, as text.
    pub(crate) fn read(text: &str, holds: &Holds) -> Result<Self> {
        Self::Text(text.to_owned()).fitted("id", holds)
    }
}

impl RowValue {
    /// The same as this column has it.
    pub(crate) fn fitted(&self, column: &str, holds: &Holds) -> Result<Self> {
        let wrong = || Error::invalid(column, format!("holds {}: {self} is none", holds.shown()));
        match (self, holds) {
            (Self::Int(_), Holds::Int) => Ok(self.clone()),
            (Self::Text(text), Holds::Int) => text.trim().parse().map(Self::Int).map_err(|_| wrong()),
            (Self::Text(text), Holds::Uuid | Holds::UuidBytes) => {
                text.trim().parse::<Uuid>().map(|uuid| Self::Text(uuid.to_string())).map_err(|_| wrong())
            }
            (Self::Int(_), Holds::Uuid | Holds::UuidBytes) => Err(wrong()),
            (Self::Text(text), _) if text.contains('\0') => Err(wrong()),
            (_, Holds::Bool) => match &*self.to_string().to_lowercase() {
                "true" | "1" => Ok(Self::Text("true".into())),
                "false" | "0" => Ok(Self::Text("false".into())),
                _ => Err(wrong()),
            },
            _ => Ok(Self::Text(self.to_string())),
        }
    }
}

impl fmt::Display for RowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(id) => id.fmt(f),
            Self::Text(id) => id.fmt(f),
            Self::Uuid(id) => id.fmt(f),
        }
    }
}

impl fmt::Display for RowValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(value) => value.fmt(f),
            Self::Text(value) => value.fmt(f),
        }
    }
}

impl Serialize for RowId {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Self::Int(id) => s.serialize_i64(*id),
            Self::Text(id) => s.serialize_str(id),
            Self::Uuid(id) => s.collect_str(id),
        }
    }
}

macro_rules! from {
    ($to:ident: $($from:ty, $v:ident => $made:expr;)*) => { $(
        impl From<$from> for $to { fn from($v: $from) -> Self { $made } }
    )* };
}

from! { RowId:
    i64, v => Self::Int(v);
    i32, v => Self::Int(v.into());
    u32, v => Self::Int(v.into());
    &str, v => Self::Text(v.to_owned());
    String, v => Self::Text(v);
    Uuid, v => Self::Uuid(v);
    &RowId, v => v.clone();
}

from! { RowValue:
    i64, v => Self::Int(v);
    i32, v => Self::Int(v.into());
    u32, v => Self::Int(v.into());
    bool, v => Self::Int(v.into());
    &str, v => Self::Text(v.to_owned());
    String, v => Self::Text(v);
    Uuid, v => Self::Text(v.to_string());
    &RowValue, v => v.clone();
}

impl GuardId for i64 {
    fn from_row(id: &RowId) -> std::result::Result<Self, String> {
        match id.fitted("id", &Holds::Int) {
            Ok(RowId::Int(id)) => Ok(id),
            _ => Err(format!("{id} is no integer")),
        }
    }
    fn to_row(&self) -> RowId {
        RowId::Int(*self)
    }
}

impl GuardId for String {
    fn from_row(id: &RowId) -> std::result::Result<Self, String> {
        Ok(id.to_string())
    }
    fn to_row(&self) -> RowId {
        RowId::Text(self.clone())
    }
}

impl GuardId for Uuid {
    fn from_row(id: &RowId) -> std::result::Result<Self, String> {
        match id.fitted("id", &Holds::Uuid) {
            Ok(RowId::Uuid(id)) => Ok(id),
            _ => Err(format!("{id} is no UUID")),
        }
    }
    fn to_row(&self) -> RowId {
        RowId::Uuid(*self)
    }
}

impl GuardId for RowId {
    fn from_row(id: &RowId) -> std::result::Result<Self, String> {
        Ok(id.clone())
    }
    fn to_row(&self) -> RowId {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_take_the_form_of_their_column_or_are_refused() {
        let uuid = Uuid::from_u128(7);
        let fit = |id: RowId, holds: Holds| id.fitted("id", &holds).ok();
        assert_eq!(fit("7".into(), Holds::Int), Some(RowId::Int(7)));
        assert_eq!(fit(7.into(), Holds::Text), Some("7".into()));
        assert_eq!(fit(uuid.to_string().into(), Holds::UuidBytes), Some(uuid.into()));
        assert_eq!(fit("seven".into(), Holds::Int), None);
        assert_eq!(fit(7.into(), Holds::Uuid), None);
        assert_eq!(fit("a\0".into(), Holds::Text), None);
    }

    #[test]
    fn values_take_the_form_of_their_column_or_are_refused() {
        let fit = |value: RowValue, holds: Holds| value.fitted("status", &holds).ok();
        assert_eq!(fit("2".into(), Holds::Int), Some(RowValue::Int(2)));
        assert_eq!(fit(2.into(), Holds::Text), Some("2".into()));
        assert_eq!(fit(true.into(), Holds::Bool), Some("true".into()));
        assert_eq!(fit("FAIL".into(), Holds::Int), None);
        assert_eq!(fit("FAIL".into(), Holds::Bool), None);
    }
}
