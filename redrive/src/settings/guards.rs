//! Business tables whose failed rows are retried: what holds for all (`[guard]`), and each of them (`[guards.bills]`).
//!
//! The server guards; this file only says what may be said. See [`guard`](crate::guard) for what the words mean.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::duration;
use crate::error::Problems;
use crate::guard::{Guard, RowValue, SHORTEST_INTERVAL};

use super::{DatabaseUrl, TargetSettings, join};

/// What holds for all guarded tables: `[guard]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct GuardSettings {
    /// How often each table is looked at, 1 s at the least. Default: 60 s.
    #[serde(with = "duration")]
    pub scan_interval: Duration,
    /// How long a business database may take to answer a statement. Default: 60 s.
    #[serde(with = "duration")]
    pub answer_timeout: Duration,
    /// Which channel of `[notify]`, one of type mail, has the mail server. Default: the only one of that type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mail_channel: Option<String>,
    /// The sender of mails about rows that need people. Default: that of the channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mail_from: Option<String>,
    /// Who gets them. Default: whoever the channel names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mail_to: Vec<String>,
}

impl Default for GuardSettings {
    fn default() -> Self {
        Self {
            scan_interval: Duration::from_secs(60),
            answer_timeout: Duration::from_secs(60),
            mail_channel: None,
            mail_from: None,
            mail_to: Vec::new(),
        }
    }
}

impl GuardSettings {
    pub(super) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        duration::check(self.scan_interval, "scan_interval", &mut problems);
        duration::check(self.answer_timeout, "answer_timeout", &mut problems);
        problems.require(self.scan_interval >= SHORTEST_INTERVAL, "scan_interval", || "must be at least 1s".into());
        problems
    }
}

/// A guarded table: `[guards.bills]`. Its handlers are called over HTTP with `{"dataId": 10, "serviceName": …, "table": …}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct GuardedTableSettings {
    /// The database that the table is in; it may hold a password and is not shown. Default: redrive's own.
    #[serde(skip_serializing)]
    pub database: Option<DatabaseUrl>,
    /// The table, if need be with its schema: `user_bill`, `billing.user_bill`. Default: none, it must be given.
    pub table: String,
    /// What people call it. Default: the name of the section.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_name: Option<String>,
    /// The column of the primary key, or another that is NOT NULL and has a unique index of its own. Default: `id`.
    pub id_field: String,
    /// The column that says whose row it is. Default: none, then users cannot be checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_field: Option<String>,
    /// The column of the business status. Default: `status`.
    pub status_field: String,
    /// The business status of success: a text or a whole number. Default: none, it must be given.
    pub success_value: Value,
    /// The business status of failure, in which rows are retried. Default: none, it must be given.
    pub fail_value: Value,
    /// The n-th retry that failed is followed by the next after n times this. Default: 60 s.
    #[serde(with = "duration")]
    pub min_interval: Duration,
    /// How long a row is retried before it is handed to people. Default: 24 h.
    #[serde(with = "duration")]
    pub timeout: Duration,
    /// How often a row is retried before it is handed to people. Default: 5.
    pub max_retry_count: u32,
    /// The n-th reminder is followed by the next after n times this. Default: 1 h.
    #[serde(with = "duration")]
    pub manual_remind_interval: Duration,
    /// The target whose secrets go along, and whose addresses the paths below are at. Default: none, they are whole addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// What is asked, with a POST, whether a row has succeeded. Default: none, it must be given.
    pub check_url: String,
    /// What is asked, with a POST, to try a row once again. Default: none, it must be given.
    pub handle_url: String,
    /// When an answer of `check_url` means success: a condition over `status`, `headers` and `body`. Default: a 2xx whose body is
    /// `true` or has `success`, or else `data`, with the value `true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check_condition: Option<String>,
    /// What is told, with a POST, of a row that a person calls successful; a 2xx, and the row is. Default: nobody.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manual_success_url: Option<String>,
    /// The route at which people say that a row is successful: `/api/user/admin/manual-bill-success`. Default: none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub manual_success_route: String,
    /// How long each of the calls may take. Default: 60 s.
    #[serde(with = "duration")]
    pub handle_timeout: Duration,
    /// How many rows are handled at once. Default: 8.
    pub concurrency: usize,
    /// Whether columns that are missing are added at the start. Default: yes.
    pub add_columns: bool,
    /// Whether the index for the scans is made at the start if it is missing. Default: no.
    pub create_index: bool,
    /// What columns are called, for databases that keep no comments. Default: nothing.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub comments: BTreeMap<String, String>,
}

/// The names of its fields.
pub(super) const OF_GUARD: &[&str] = &[
    "database",
    "table",
    "service_name",
    "id_field",
    "user_field",
    "status_field",
    "success_value",
    "fail_value",
    "min_interval",
    "timeout",
    "max_retry_count",
    "manual_remind_interval",
    "target",
    "check_url",
    "handle_url",
    "check_condition",
    "manual_success_url",
    "manual_success_route",
    "handle_timeout",
    "concurrency",
    "add_columns",
    "create_index",
    "comments",
];

const LONGEST_NAME: usize = 100;

impl Default for GuardedTableSettings {
    fn default() -> Self {
        Self {
            database: None,
            table: String::new(),
            service_name: None,
            id_field: "id".into(),
            user_field: None,
            status_field: "status".into(),
            success_value: Value::Null,
            fail_value: Value::Null,
            min_interval: Duration::from_secs(60),
            timeout: Duration::from_secs(24 * 3600),
            max_retry_count: 5,
            manual_remind_interval: Duration::from_secs(3600),
            target: None,
            check_url: String::new(),
            handle_url: String::new(),
            check_condition: None,
            manual_success_url: None,
            manual_success_route: String::new(),
            handle_timeout: Duration::from_secs(60),
            concurrency: 8,
            add_columns: true,
            create_index: false,
            comments: BTreeMap::new(),
        }
    }
}

impl GuardedTableSettings {
    /// What people call it.
    pub fn service_name<'a>(&'a self, section: &'a str) -> &'a str {
        self.service_name.as_deref().unwrap_or(section)
    }

    /// The guard that it describes.
    pub fn guard(&self, section: &str) -> Guard {
        let guard = Guard::table(&self.table)
            .service_name(self.service_name(section))
            .id_field(&self.id_field)
            .status_field(&self.status_field)
            .success_value(row_value(&self.success_value))
            .fail_value(row_value(&self.fail_value))
            .min_interval(self.min_interval)
            .timeout(self.timeout)
            .max_retry_count(self.max_retry_count)
            .manual_remind_interval(self.manual_remind_interval)
            .handle_timeout(self.handle_timeout)
            .concurrency(self.concurrency)
            .add_columns(self.add_columns)
            .create_index(self.create_index)
            .comments(&self.comments);
        match &self.user_field {
            Some(field) => guard.user_field(field),
            None => guard,
        }
    }

    /// What can be said without the database; the rest is said when it is opened.
    pub(super) fn check(&self, name: &str, targets: &BTreeMap<String, TargetSettings>, all: &mut Problems) {
        let path = join("guards", name);
        let nameable = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        all.require((1..=LONGEST_NAME).contains(&name.len()) && name.chars().all(nameable), &path, || {
            format!(
                "a guard's name must be from 1 to {LONGEST_NAME} letters, digits, _ and -; service_name may be anything"
            )
        });
        let mut p = Problems::default();
        let given = |value: &Value| matches!(value, Value::String(_)) || value.as_i64().is_some();
        p.require(given(&self.success_value), "success_value", || "must be a text or a whole number".into());
        p.require(given(&self.fail_value), "fail_value", || "must be a text or a whole number".into());
        p.require(!self.check_url.is_empty(), "check_url", || "must be given".into());
        p.require(!self.handle_url.is_empty(), "handle_url", || "must be given".into());
        if let Some(target) = &self.target {
            p.require(targets.contains_key(target), "target", || format!("there is no [targets.{target}]"));
        }
        if let Some(Err(why)) = self.check_condition.as_deref().map(crate::condition::check) {
            p.add("check_condition", why);
        }
        all.nest(&path, p);
        all.nest(&path, self.guard(name).problems());
    }
}

/// People and routes know a table by its service name: no two have the same.
pub(super) fn check_names(guards: &BTreeMap<String, GuardedTableSettings>, all: &mut Problems) {
    let mut known = BTreeMap::new();
    for (section, guard) in guards {
        if let Some(other) = known.insert(guard.service_name(section), section) {
            let path = join(&join("guards", section), "service_name");
            all.add(path, format!("is that of [{}], too", join("guards", other)));
        }
    }
}

/// A text or a whole number.
fn row_value(json: &Value) -> RowValue {
    match json.as_i64() {
        Some(n) => n.into(),
        None => json.as_str().map_or_else(|| json.to_string(), str::to_owned).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;

    const BILLS: &str = "[guards.bills]\ntable = 'user_bill'\nsuccess_value = 'SUCCESS'\nfail_value = 'FAIL'\n\
                         check_url = 'https://bills.example.org/check'\nhandle_url = 'https://bills.example.org/handle'\n";

    fn read(more: &str, variables: &[(&str, &str)]) -> crate::Result<Settings> {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Settings::parse(&format!("{BILLS}{more}"), variables)
    }

    #[test]
    fn every_field_can_be_a_variable() {
        let written = serde_json::to_value(GuardedTableSettings {
            service_name: Some("x".into()),
            user_field: Some("x".into()),
            target: Some("x".into()),
            check_condition: Some("x".into()),
            manual_success_url: Some("x".into()),
            manual_success_route: "x".into(),
            comments: [("x".to_owned(), "x".to_owned())].into(),
            ..GuardedTableSettings::default()
        });
        let Value::Object(fields) = written.unwrap() else { panic!() };
        let mut names: Vec<&str> = fields.keys().map(String::as_str).chain(["database"]).collect();
        let mut known = OF_GUARD.to_vec();
        names.sort_unstable();
        known.sort_unstable();
        assert_eq!(names, known);
        let settings = read(
            "",
            &[("REDRIVE_GUARDS__BILLS__DATABASE", "mysql://u:123@h/db"), ("REDRIVE_GUARD__SCAN_INTERVAL", "5s")],
        );
        let settings = settings.unwrap();
        assert_eq!(settings.guards["bills"].database.as_ref().unwrap().as_str(), "mysql://u:123@h/db");
        assert_eq!(settings.guard.scan_interval, Duration::from_secs(5));
        assert!(!format!("{settings:?}").contains("123") && !serde_json::to_string(&settings).unwrap().contains("123"));
    }

    #[test]
    fn all_that_is_wrong_is_said() {
        let e = read("target = 'nobody'\ncheck_condition = 'body.('\ntimeout = '0s'\n[guards.\"a b\"]\n", &[])
            .unwrap_err()
            .to_string();
        for part in [
            "guards.bills.target",
            "[targets.nobody]",
            "guards.bills.check_condition",
            "guards.bills.timeout",
            "guards.\"a b\"",
            "success_value",
            "check_url",
        ] {
            assert!(e.contains(part), "{part} in {e}");
        }
        let e = read("min_interval = '1500ms'\nmax_retry_count = 0\nconcurrency = 0\nid_field = 'a;b'", &[])
            .unwrap_err()
            .to_string();
        for part in ["min_interval", "max_retry_count", "concurrency", "id_field"] {
            assert!(e.contains(&format!("guards.bills.{part}")), "{part} in {e}");
        }
        let e = read("tabel = 'x'", &[]).unwrap_err().to_string();
        assert!(e.contains("tabel"), "{e}");
        assert!(read("success_value = 1.5", &[]).is_err(), "given twice, and not a value that a column of status has");
    }

    /// What the guards would refuse when they start.
    #[test]
    fn what_would_not_start_is_refused_before() {
        let another = BILLS.replace("bills]", "refunds]");
        let e = read(&format!("[guard]\nscan_interval = '999ms'\n{another}service_name = 'bills'"), &[]).unwrap_err();
        let problems: Vec<_> = match &e {
            crate::Error::Invalid(problems) => problems.iter().collect(),
            e => panic!("{e}"),
        };
        assert_eq!(problems.len(), 2, "{e}");
        assert!(problems[0].0.starts_with("guard.scan_interval") && problems[0].1.contains("1s"), "{e}");
        assert!(problems[1].0.starts_with("guards.refunds.service_name"), "{e}");
        assert!(problems[1].1.contains("[guards.bills]"), "{e}");
        assert!(read(&format!("[guard]\nscan_interval = '1s'\n{another}"), &[]).is_ok());
    }
}
