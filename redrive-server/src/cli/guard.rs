//! `redrive guard`: rows of business tables that failed, and what a person says of one.

use clap::Subcommand;
use serde_json::{Value, json};

use super::Run;
use super::api::{Api, Query};
use super::failure::Failure;
use super::out::{Column, Out, line, short, text};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List guarded tables, and how many of their rows are in which state.
    Ls,
    /// Say what is missing in a guarded table, or in all: columns, index, rights; with the SQL that adds it.
    ///
    /// Changes nothing. Exits with 1 if something is missing that the guard cannot do without.
    Check {
        /// The guard: its service name. Default: all of them.
        service: Option<String>,
    },
    /// Show a row, and what keeps it from being retried or notified.
    Show {
        /// The guard: its service name.
        service: String,
        /// The row's primary key.
        id: String,
    },
    /// Say that a row has been handled: it and its business status are successful.
    Resolve {
        /// The guard: its service name.
        service: String,
        /// The row's primary key.
        id: String,
    },
}

const COLUMNS: &[Column] = &[
    ("service", |guard, _| short(guard, "service_name")),
    ("table", |guard, _| short(guard, "table")),
    ("database", |guard, _| short(guard, "database")),
    ("retried (4000)", |guard, _| text(guard, "counts/4000")),
    ("for people (4001)", |guard, _| text(guard, "counts/4001")),
    ("retried well (2001)", |guard, _| text(guard, "counts/2001")),
    ("handled (2002)", |guard, _| text(guard, "counts/2002")),
    ("trouble", |guard, _| short(guard, "trouble")),
];

const NONE: &str = "no table is guarded; see [guards.NAME] in redrive.toml";

impl Run for Command {
    async fn run(self, api: &Api, out: Out) -> anyhow::Result<()> {
        match self {
            Self::Ls => Ok(out.list(&guards(api).await?, COLUMNS, NONE)?),
            Self::Check { service } => check(service, api, out).await,
            Self::Show { service, id } => {
                let row = api.get(&["guards", &service, "rows", &id], &Query::new()).await?;
                if out.json { Ok(line(&row)?) } else { Ok(show(&row)?) }
            }
            Self::Resolve { service, id } => {
                let done = api.post(&["guards", &service, "success"], &json!({ "dataId": id })).await?;
                Ok(out.say(&done, format!("{service} {id}: successful (2002)"))?)
            }
        }
    }
}

async fn guards(api: &Api) -> Result<Vec<Value>, Failure> {
    let answer = api.get(&["guards"], &Query::new()).await?;
    Ok(answer.get("guards").and_then(Value::as_array).cloned().unwrap_or_default())
}

async fn check(service: Option<String>, api: &Api, out: Out) -> anyhow::Result<()> {
    let services = match service {
        Some(service) => vec![service],
        None => guards(api).await?.iter().map(|guard| text(guard, "service_name")).collect(),
    };
    if services.is_empty() {
        return Ok(out.list(&[], COLUMNS, NONE)?);
    }
    let mut bad = 0;
    for service in services {
        let found = api.get(&["guards", &service, "check"], &Query::new()).await?;
        bad += usize::from(found.get("usable") != Some(&true.into()));
        if out.json {
            line(&found)?;
            continue;
        }
        let lines = |field: &str| found.get(field).and_then(Value::as_array).cloned().unwrap_or_default();
        let (problems, sql) = (lines("problems"), lines("sql"));
        line(format!("{service}: {}", if problems.is_empty() { "complete" } else { "" }))?;
        problems.iter().try_for_each(|problem| line(format!("  {}", problem.as_str().unwrap_or_default())))?;
        sql.iter().try_for_each(|sql| line(format!("    {};", sql.as_str().unwrap_or_default())))?;
    }
    if bad > 0 { Err(Failure::failed(format!("{bad} cannot be guarded as they are")).into()) } else { Ok(()) }
}

fn show(row: &Value) -> std::io::Result<()> {
    let columns = row.get("row").and_then(Value::as_object).cloned().unwrap_or_default();
    let width = columns.keys().map(String::len).max().unwrap_or(0);
    for name in columns.keys() {
        line(format!("{name:width$}  {}", text(row, &format!("row/{name}"))))?;
    }
    let why = row.get("why").and_then(Value::as_array).cloned().unwrap_or_default();
    line("")?;
    why.iter().try_for_each(|why| line(why.as_str().unwrap_or_default()))
}
