//! One row with all that the guard knows of it: which condition keeps it from being scanned.

use std::fmt;

use serde_json::{Map, Value as Json};

use crate::error::{Error, Result};
use crate::store::db::query;
use crate::store::pool::Use;
use crate::store::retry::{Scope, retrying};

use super::catalogue::Catalogue;
use super::rows::Shapes;
use super::table::{GuardedTable, Inner};
use super::value::RowId;

/// A row, and why it is not scanned.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RowShown {
    /// Its id.
    pub id: RowId,
    /// All its columns.
    pub columns: Map<String, Json>,
    /// What keeps the next poll from retrying it, or from telling people of it. Nothing: the next poll will.
    pub not_scanned: Vec<NotScanned>,
}

/// A condition of the scans that a row does not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotScanned {
    /// It is neither 4000 nor 4001.
    NotAbnormal {
        /// What it is.
        err_status: Option<i64>,
    },
    /// It is retried later, or a retry is under way.
    NotDue {
        /// Until when.
        err_next_retry_time: String,
    },
    /// People are told again later.
    NotToBeTold {
        /// When.
        err_next_remind_staff_time: String,
    },
    /// The business status is not the fail value.
    NotFailed {
        /// What it is.
        status: Option<String>,
        /// What it would have to be.
        fail_value: String,
        /// Whether it is the success value: then the next poll closes it.
        is_success: bool,
    },
}

impl fmt::Display for NotScanned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAbnormal { err_status: None } => {
                f.write_str("err_status is NULL, not 4000 or 4001: it was never marked")
            }
            Self::NotAbnormal { err_status: Some(code) } => write!(f, "err_status is {code}, not 4000 or 4001"),
            Self::NotDue { err_next_retry_time } => {
                write!(f, "err_next_retry_time is {err_next_retry_time}: it is not due yet, or being retried now")
            }
            Self::NotToBeTold { err_next_remind_staff_time } => {
                write!(f, "err_next_remind_staff_time is {err_next_remind_staff_time}: people are told again then")
            }
            Self::NotFailed { status, is_success: true, .. } => {
                write!(f, "the business status is {}, success: the next poll closes it", shown(status))
            }
            Self::NotFailed { status, fail_value, .. } => {
                write!(f, "the business status is {}, not the fail value {fail_value}", shown(status))
            }
        }
    }
}

fn shown(status: &Option<String>) -> &str {
    status.as_deref().unwrap_or("NULL")
}

/// What the conditions are about.
struct Facts {
    err_status: Option<i64>,
    next_retry: Option<String>,
    is_due: bool,
    next_remind: Option<String>,
    is_to_be_told: bool,
    status: Option<String>,
    is_failed: bool,
    is_success: bool,
}

impl GuardedTable {
    /// A row with all its columns, and which conditions keep it from being scanned.
    pub async fn show(&self, id: impl Into<RowId>) -> Result<RowShown> {
        let Inner { sql, db, guard, .. } = &*self.0;
        let id = sql.fit(&id.into())?;
        let shapes = Shapes::of(&Catalogue::read(db, guard).await?, db.dialect());
        let doing = format!("looking at row {id} of {}", guard.table);
        let (now, at) = (sql.time(self.seconds()), sql.at("?"));
        let (fail, success) = (sql.fail()?, sql.success()?);
        let status = sql.as_text(&sql.status.quoted, sql.status.holds == super::value::Holds::UuidBytes);
        let status_is = sql.status_is();
        let (next_retry, next_remind) =
            (sql.datetime_text("err_next_retry_time"), sql.datetime_text("err_next_remind_staff_time"));
        let select = format!(
            "SELECT err_status, {next_retry}, \
             CASE WHEN err_next_retry_time IS NULL OR err_next_retry_time <= {at} THEN 1 ELSE 0 END, {next_remind}, \
             CASE WHEN err_next_remind_staff_time IS NULL OR err_next_remind_staff_time < {at} THEN 1 ELSE 0 END, \
             {status}, CASE WHEN {status_is} THEN 1 ELSE 0 END, CASE WHEN {status_is} THEN 1 ELSE 0 END, {} \
             FROM {} WHERE {}",
            shapes.select(sql),
            sql.table,
            sql.id_is()
        );
        let found = retrying!(db.pools(), Use::Read, Scope::Statement, &doing, |c, _| {
            let select = query(select.clone()).bind(now.clone()).bind(now.clone()).bind(fail.clone());
            let row = c.row(select.bind(success.clone()).bind(sql.id_of(&id))).await?;
            row.map(|row| Ok((read_facts(&row)?, shapes.read(&row, 8)?))).transpose()
        })?;
        let (facts, columns) =
            found.ok_or_else(|| Error::NotFound { what: "row", id: format!("{id} in {}", guard.table) })?;
        Ok(RowShown { id, columns, not_scanned: facts.conditions(sql.fail_text()) })
    }
}

fn read_facts(row: &crate::store::db::Row) -> sqlx::Result<Facts> {
    let mut c = row.columns();
    Ok(Facts {
        err_status: c.opt_int()?,
        next_retry: c.opt_text()?.map(str::to_owned),
        is_due: c.int()? == 1,
        next_remind: c.opt_text()?.map(str::to_owned),
        is_to_be_told: c.int()? == 1,
        status: c.opt_text()?.map(str::to_owned),
        is_failed: c.int()? == 1,
        is_success: c.int()? == 1,
    })
}

impl Facts {
    /// Source 5, §11.2.
    fn conditions(self, fail_value: String) -> Vec<NotScanned> {
        let mut not = Vec::new();
        match self.err_status {
            Some(super::err_status::ABNORMAL) if !self.is_due => {
                not.push(NotScanned::NotDue { err_next_retry_time: self.next_retry.unwrap_or_default() });
            }
            Some(super::err_status::MANUAL) if !self.is_to_be_told => {
                let err_next_remind_staff_time = self.next_remind.unwrap_or_default();
                not.push(NotScanned::NotToBeTold { err_next_remind_staff_time });
            }
            Some(super::err_status::ABNORMAL | super::err_status::MANUAL) => {}
            err_status => not.push(NotScanned::NotAbnormal { err_status }),
        }
        if !self.is_failed {
            not.push(NotScanned::NotFailed { status: self.status, fail_value, is_success: self.is_success });
        }
        not
    }
}
