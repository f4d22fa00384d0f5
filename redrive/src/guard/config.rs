//! What a guard watches over, and how: the parameters of `@AbnormalRetryConfig`.

use std::time::Duration;

use crate::duration::LONGEST;
use crate::error::{Problems, Result};

use super::value::RowValue;

/// What to watch over, and how. A guard is registered with a database and a handler by
/// [`GuardsBuilder::guard`](super::GuardsBuilder::guard).
///
/// ```
/// use redrive::guard::Guard;
/// use std::time::Duration;
///
/// let guard = Guard::table("user_bill")
///     .service_name("异常处理示例")
///     .user_field("user_id")
///     .status_field("status")
///     .success_value("SUCCESS")
///     .fail_value("FAIL")
///     .min_interval(Duration::from_secs(5))
///     .timeout(Duration::from_secs(180))
///     .max_retry_count(2)
///     .manual_remind_interval(Duration::from_secs(10));
/// guard.validate()?;
/// assert_eq!(guard.name(), "异常处理示例");
/// # Ok::<(), redrive::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a guard is data until it is registered"]
pub struct Guard {
    pub(super) table: String,
    pub(super) service_name: Option<String>,
    pub(super) id_field: String,
    pub(super) user_field: Option<String>,
    pub(super) status_field: String,
    pub(super) success_value: Option<RowValue>,
    pub(super) fail_value: Option<RowValue>,
    pub(super) min_interval: Duration,
    pub(super) timeout: Duration,
    pub(super) max_retry_count: u32,
    pub(super) manual_remind_interval: Duration,
    pub(super) handle_timeout: Duration,
    pub(super) concurrency: usize,
    pub(super) add_columns: bool,
    pub(super) create_index: bool,
    pub(super) comments: Vec<(String, String)>,
}

/// What the three steps of a retry may take together, and how long a claim outlasts them.
const MOST_HANDLE_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
const MOST_CONCURRENCY: usize = 1024;
const LONGEST_SERVICE_NAME: usize = 200;
const LONGEST_IDENTIFIER: usize = 64;

impl Guard {
    /// A guard over this table, which may have its schema before it: `shop.user_bill`. The name is used as it is written,
    /// also where it is a reserved word.
    pub fn table(name: impl Into<String>) -> Self {
        Self {
            table: name.into(),
            service_name: None,
            id_field: "id".into(),
            user_field: None,
            status_field: String::new(),
            success_value: None,
            fail_value: None,
            min_interval: Duration::from_secs(60),
            timeout: Duration::from_secs(24 * 3600),
            max_retry_count: 5,
            manual_remind_interval: Duration::from_secs(3600),
            handle_timeout: Duration::from_secs(60),
            concurrency: 8,
            add_columns: true,
            create_index: false,
            comments: Vec::new(),
        }
    }

    /// What people call it; each guard has its own. Default: the table's name.
    pub fn service_name(mut self, name: impl Into<String>) -> Self {
        self.service_name = Some(name.into());
        self
    }

    /// The column that rows are known by: unique, of integers, text or UUIDs. Default: `id`.
    pub fn id_field(mut self, column: impl Into<String>) -> Self {
        self.id_field = column.into();
        self
    }

    /// The column that says whose a row is. Default: none; then [`check_user_err`](super::GuardedTable::check_user_err)
    /// cannot be used.
    pub fn user_field(mut self, column: impl Into<String>) -> Self {
        self.user_field = Some(column.into());
        self
    }

    /// The column with the business status. There is no default.
    pub fn status_field(mut self, column: impl Into<String>) -> Self {
        self.status_field = column.into();
        self
    }

    /// What is in the status column when the business has succeeded. There is no default.
    pub fn success_value(mut self, value: impl Into<RowValue>) -> Self {
        self.success_value = Some(value.into());
        self
    }

    /// What is in the status column when the business has failed. There is no default.
    pub fn fail_value(mut self, value: impl Into<RowValue>) -> Self {
        self.fail_value = Some(value.into());
        self
    }

    /// The n-th retry that fails is followed by the next one after n times this. In whole seconds; a row's own
    /// `err_min_interval` wins. Default: 1 min.
    pub fn min_interval(mut self, time: Duration) -> Self {
        self.min_interval = time;
        self
    }

    /// How long after it became abnormal a row is retried; then a person has to look at it. In whole seconds; a row's own
    /// `err_timeout` wins. Default: 24 h.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.timeout = time;
        self
    }

    /// With this many failed retries a person has to look at it. Default: 5.
    pub fn max_retry_count(mut self, count: u32) -> Self {
        self.max_retry_count = count;
        self
    }

    /// The n-th mail about a row is followed by the next one after n times this. In whole seconds. Default: 1 h.
    pub fn manual_remind_interval(mut self, time: Duration) -> Self {
        self.manual_remind_interval = time;
        self
    }

    /// How long each of `check_status` and `handle` may take. A row is claimed for three times that and a little more: so
    /// long it waits if the process dies. Default: 60 s.
    pub fn handle_timeout(mut self, time: Duration) -> Self {
        self.handle_timeout = time;
        self
    }

    /// How many rows are retried at once. Default: 8.
    pub fn concurrency(mut self, rows: usize) -> Self {
        self.concurrency = rows;
        self
    }

    /// Whether `err_*` columns that are missing are added to the table. Default: yes.
    pub fn add_columns(mut self, add: bool) -> Self {
        self.add_columns = add;
        self
    }

    /// Whether the index that the scans need is created if there is none. Default: no, as that may take long on a big table;
    /// [`inspect`](super::GuardedTable::inspect) has the statement.
    pub fn create_index(mut self, create: bool) -> Self {
        self.create_index = create;
        self
    }

    /// What the columns are, for people who look at the list: for SQLite, which keeps no comments. Elsewhere the comments in
    /// the database are shown, and these where it has none.
    pub fn comments<C: Into<String>, T: Into<String>>(mut self, comments: impl IntoIterator<Item = (C, T)>) -> Self {
        self.comments = comments.into_iter().map(|(column, comment)| (column.into(), comment.into())).collect();
        self
    }

    /// What people call it.
    pub fn name(&self) -> &str {
        self.service_name.as_deref().unwrap_or(&self.table)
    }

    /// The table, as it was given.
    pub fn table_name(&self) -> &str {
        &self.table
    }

    /// Whether this makes sense by itself; if not, all that is wrong with it. Whether it fits the table is seen when it is
    /// [started](super::GuardsBuilder::start).
    pub fn validate(&self) -> Result<()> {
        self.problems().into_result()
    }

    pub(crate) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        let names = self.table.split('.');
        problems.require(names.clone().count() <= 2 && names.clone().all(is_identifier), "table", || {
            format!("must be a name such as user_bill or shop.user_bill, is {:?}: {NAMES}", self.table)
        });
        let mut column = |field: &str, name: &str| {
            problems
                .require(is_identifier(name), field, || format!("must be the name of a column, is {name:?}: {NAMES}"));
        };
        column("id_field", &self.id_field);
        column("status_field", &self.status_field);
        self.user_field.iter().for_each(|name| column("user_field", name));
        let fits = !self.name().trim().is_empty() && self.name().len() <= LONGEST_SERVICE_NAME;
        problems.require(fits && !self.name().contains(char::is_control), "service_name", || {
            format!("must be from 1 to {LONGEST_SERVICE_NAME} bytes, on one line")
        });
        problems.require(self.success_value.is_some(), "success_value", || "must be given".into());
        problems.require(self.fail_value.is_some(), "fail_value", || "must be given".into());
        problems.require(self.success_value.is_none() || self.success_value != self.fail_value, "fail_value", || {
            "must differ from success_value".into()
        });
        for (field, time, most) in [
            ("min_interval", self.min_interval, LONGEST),
            ("timeout", self.timeout, LONGEST),
            ("manual_remind_interval", self.manual_remind_interval, LONGEST),
            ("handle_timeout", self.handle_timeout, MOST_HANDLE_TIMEOUT),
        ] {
            whole_seconds(time, most, field, &mut problems);
        }
        problems.require(self.max_retry_count >= 1, "max_retry_count", || "must be at least 1".into());
        problems.require((1..=MOST_CONCURRENCY).contains(&self.concurrency), "concurrency", || {
            format!("must be from 1 to {MOST_CONCURRENCY}")
        });
        problems
    }
}

const NAMES: &str = "letters, digits, _ and $, at most 64, without quotes";

fn is_identifier(name: &str) -> bool {
    let fits = (1..=LONGEST_IDENTIFIER).contains(&name.chars().count());
    fits && name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '$')
}

/// The columns hold whole seconds.
fn whole_seconds(time: Duration, most: Duration, field: &str, problems: &mut Problems) {
    let fits = time >= Duration::from_secs(1) && time <= most && time.subsec_nanos() == 0;
    problems.require(fits, field, || {
        let (time, most) = (humantime::format_duration(time), humantime::format_duration(most));
        format!("must be whole seconds from 1s to {most}, is {time}")
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(guard: &Guard) -> String {
        guard.validate().unwrap_err().to_string()
    }

    fn good() -> Guard {
        Guard::table("user_bill").status_field("status").success_value("SUCCESS").fail_value("FAIL")
    }

    #[test]
    fn all_that_is_wrong_is_said_at_once() {
        good().validate().unwrap();
        let said = said(&Guard::table("a; DROP TABLE b").min_interval(Duration::from_millis(1500)).max_retry_count(0));
        for field in ["table", "status_field", "success_value", "fail_value", "min_interval", "max_retry_count"] {
            assert!(said.contains(&format!("{field}: ")), "{field}: {said}");
        }
    }

    #[test]
    fn names_are_names() {
        for table in ["", "a.b.c", "a.", "a b", "`a`", "a\"", "a'", "a?"] {
            let guard = Guard { table: table.into(), ..good() };
            assert!(said(&guard).contains("table: "), "{table:?}");
        }
        for table in ["order", "shop.order", "_a$1", "账单"] {
            Guard { table: table.into(), ..good() }.validate().unwrap();
        }
        assert!(said(&good().success_value("FAIL")).contains("must differ"));
    }
}
