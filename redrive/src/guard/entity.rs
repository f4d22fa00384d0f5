//! The nine columns as part of an application's own entity.

#[cfg(feature = "postgres")]
use sqlx::ValueRef as _;
use sqlx::{FromRow, Row as _};

/// The nine `err_*` columns of a row. An entity that has them as a field is read with `#[derive(ErrColumns)]`: all other fields
/// by their names, these together. (`#[derive(sqlx::FromRow)]` with `#[sqlx(flatten)]` does the same.)
///
/// ```
/// use redrive::guard::ErrColumns;
///
/// #[derive(ErrColumns)]
/// struct UserBill {
///     id: i64,
///     #[column("status")]
///     state: String,
///     err: ErrColumns,
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> anyhow::Result<()> {
/// let pool = sqlx::SqlitePool::connect("sqlite::memory:").await?;
/// let sql = "SELECT 7 AS id, 'FAIL' AS status, 4001 AS err_status, '2026-02-05 12:00:00' AS err_start_time, \
///            2 AS err_retry_count, NULL AS err_next_retry_time, NULL AS err_min_interval, NULL AS err_timeout, \
///            2000 AS err_submit_manual_status, NULL AS err_next_remind_staff_time, 1 AS err_manual_notify_count";
/// let bill: UserBill = sqlx::query_as(sql).fetch_one(&pool).await?;
/// assert_eq!((bill.id, &*bill.state, bill.err.err_status), (7, "FAIL", Some(4001)));
/// assert!(bill.err.is_abnormal());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ErrColumns {
    /// What has become of the row: see [`err_status`](super::err_status).
    pub err_status: Option<i64>,
    /// Since when it is abnormal; like all datetimes here `yyyy-MM-dd HH:mm:ss`, as it is in the database.
    pub err_start_time: Option<String>,
    /// Retries that have failed.
    pub err_retry_count: Option<i64>,
    /// When it may be retried.
    pub err_next_retry_time: Option<String>,
    /// Seconds between retries.
    pub err_min_interval: Option<i64>,
    /// Seconds for which it is retried.
    pub err_timeout: Option<i64>,
    /// What people know of it: see [`manual_status`](super::manual_status).
    pub err_submit_manual_status: Option<i64>,
    /// When people are told again.
    pub err_next_remind_staff_time: Option<String>,
    /// How often people were told.
    pub err_manual_notify_count: Option<i64>,
}

impl ErrColumns {
    /// Whether it is in 4000 or 4001.
    pub fn is_abnormal(&self) -> bool {
        matches!(self.err_status, Some(super::err_status::ABNORMAL | super::err_status::MANUAL))
    }
}

/// Reads the nine columns by two functions of a row and a name: one for integers, one for datetimes.
macro_rules! from_row {
    ($row:ty, $int:ident, $time:ident) => {
        impl<'r> FromRow<'r, $row> for ErrColumns {
            fn from_row(row: &'r $row) -> sqlx::Result<Self> {
                Ok(Self {
                    err_status: $int(row, "err_status")?,
                    err_start_time: $time(row, "err_start_time")?,
                    err_retry_count: $int(row, "err_retry_count")?,
                    err_next_retry_time: $time(row, "err_next_retry_time")?,
                    err_min_interval: $int(row, "err_min_interval")?,
                    err_timeout: $int(row, "err_timeout")?,
                    err_submit_manual_status: $int(row, "err_submit_manual_status")?,
                    err_next_remind_staff_time: $time(row, "err_next_remind_staff_time")?,
                    err_manual_notify_count: $int(row, "err_manual_notify_count")?,
                })
            }
        }
    };
}

#[cfg(feature = "sqlite")]
from_row!(sqlx::sqlite::SqliteRow, sqlite_int, sqlite_time);
#[cfg(feature = "postgres")]
from_row!(sqlx::postgres::PgRow, postgres_int, postgres_time);
#[cfg(feature = "mysql")]
from_row!(sqlx::mysql::MySqlRow, mysql_int, mysql_time);

#[cfg(feature = "sqlite")]
fn sqlite_int(row: &sqlx::sqlite::SqliteRow, name: &str) -> sqlx::Result<Option<i64>> {
    row.try_get(name)
}

#[cfg(feature = "sqlite")]
fn sqlite_time(row: &sqlx::sqlite::SqliteRow, name: &str) -> sqlx::Result<Option<String>> {
    row.try_get_unchecked(name)
}

/// Of whatever width it is.
#[cfg(feature = "postgres")]
fn postgres_int(row: &sqlx::postgres::PgRow, name: &str) -> sqlx::Result<Option<i64>> {
    if let Ok(int) = row.try_get::<Option<i32>, _>(name) {
        return Ok(int.map(i64::from));
    }
    match row.try_get::<Option<i16>, _>(name) {
        Ok(int) => Ok(int.map(i64::from)),
        Err(_) => row.try_get(name),
    }
}

#[cfg(feature = "postgres")]
fn postgres_time(row: &sqlx::postgres::PgRow, name: &str) -> sqlx::Result<Option<String>> {
    let raw = row.try_get_raw(name)?;
    if raw.is_null() {
        return Ok(None);
    }
    if raw.format() == sqlx::postgres::PgValueFormat::Text {
        return Ok(Some(to_the_second(raw.as_str().map_err(sqlx::Error::Decode)?)));
    }
    // Microseconds since 2000.
    const FROM_1970: i64 = 946_684_800_000_000;
    let bytes = raw.as_bytes().map_err(sqlx::Error::Decode)?.try_into().map_err(|_| no_time(name))?;
    let micros = i64::from_be_bytes(bytes).checked_add(FROM_1970).ok_or_else(|| no_time(name))?;
    let time = jiff::Timestamp::from_microsecond(micros).map_err(|_| no_time(name))?;
    Ok(Some(to_the_second(&time.to_string().replace('T', " "))))
}

#[cfg(feature = "mysql")]
fn mysql_int(row: &sqlx::mysql::MySqlRow, name: &str) -> sqlx::Result<Option<i64>> {
    row.try_get(name)
}

/// As text (`2026-…`), or as a length, a year of two bytes, and a byte for each of the rest, as far as they are not zero.
#[cfg(feature = "mysql")]
fn mysql_time(row: &sqlx::mysql::MySqlRow, name: &str) -> sqlx::Result<Option<String>> {
    let Some(bytes) = row.try_get_unchecked::<Option<&[u8]>, _>(name)? else { return Ok(None) };
    if let Ok(text) = std::str::from_utf8(bytes)
        && text.starts_with(|c: char| c.is_ascii_digit())
    {
        return Ok(Some(to_the_second(text)));
    }
    let [_, low, high, month, day, rest @ ..] = bytes else { return Err(no_time(name)) };
    let part = |i: usize| rest.get(i).copied().unwrap_or_default();
    let year = u16::from_le_bytes([*low, *high]);
    Ok(Some(format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", part(0), part(1), part(2))))
}

/// Without fractions and zone.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn to_the_second(text: &str) -> String {
    text.get(.."yyyy-MM-dd HH:mm:ss".len()).unwrap_or(text).to_owned()
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
fn no_time(name: &str) -> sqlx::Error {
    sqlx::Error::Decode(format!("{name} is no datetime").into())
}
