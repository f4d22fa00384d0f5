//! Which tasks or letters, and lists of them, page by page.

use clap::{Args, ValueEnum};
use redrive::{Clock, Timestamp};
use serde_json::{Value, json};

use super::api::{Api, Query};
use super::failure::Failure;
use super::out::{Column, Out, aside};

/// Entries of one request. Tables are drawn of no more: their columns' widths must be known before the first line.
const PAGE: usize = 500;

/// What tasks and letters have in common. All that is given must hold.
#[derive(Debug, Args)]
#[command(next_help_heading = "Which")]
pub(super) struct Filter {
    /// Of this method.
    #[arg(long)]
    method: Option<String>,
    /// With this key.
    #[arg(long)]
    key: Option<String>,
    /// Of this business: its type and its id.
    #[arg(long, value_name = "TYPE/ID", value_parser = business, conflicts_with_all = ["business_type", "business_id"])]
    business: Option<(String, String)>,
    /// Of businesses of this type.
    #[arg(long, value_name = "TYPE")]
    business_type: Option<String>,
    /// Of the business with this id.
    #[arg(long, value_name = "ID")]
    business_id: Option<String>,
    /// Whose last error is of this kind: timeout, http.503.
    #[arg(long, value_name = "KIND")]
    error_kind: Option<String>,
    /// Whose last error has this text in its message. No index knows that: with millions of tasks it takes a while.
    #[arg(long, value_name = "TEXT")]
    error_contains: Option<String>,
    /// Created at this time or later: 2026-02-05T12:00:00Z, "2h ago".
    #[arg(long, value_name = "TIME", value_parser = moment)]
    created_from: Option<Timestamp>,
    /// Created before this time.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    created_before: Option<Timestamp>,
    /// Due at this time or later: now, "in 5m".
    #[arg(long, value_name = "TIME", value_parser = moment)]
    due_from: Option<Timestamp>,
    /// Due before this time.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    due_before: Option<Timestamp>,
}

/// Which tasks.
#[derive(Debug, Args)]
#[command(next_help_heading = "Which")]
pub(super) struct OfTasks {
    /// That wait, or that run.
    #[arg(long, ignore_case = true)]
    status: Option<Status>,
    #[command(flatten)]
    filter: Filter,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Status {
    Pending,
    Running,
}

/// Which dead letters.
#[derive(Debug, Args)]
#[command(next_help_heading = "Which")]
pub(super) struct OfDead {
    /// That died for this reason.
    #[arg(long)]
    reason: Option<Reason>,
    /// That this person has taken over.
    #[arg(long, value_name = "NAME", conflicts_with = "unowned")]
    owner: Option<String>,
    /// That nobody has taken over.
    #[arg(long)]
    unowned: bool,
    /// That nobody has said to have seen.
    #[arg(long)]
    unacknowledged: bool,
    #[command(flatten)]
    filter: Filter,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Reason {
    Exhausted,
    Expired,
    Rejected,
    FailedByHand,
    Crashed,
    Undecodable,
    Postponed,
}

/// The name by which the API knows it.
fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

impl Filter {
    /// As the API has it: in queries and in bodies.
    fn fields(&self) -> Query {
        let (kind, id) = self.business.clone().unzip();
        let time = |time: Option<Timestamp>| time.map(|time| time.to_string());
        let all = [
            ("method", self.method.clone()),
            ("key", self.key.clone()),
            ("business_type", kind.or_else(|| self.business_type.clone())),
            ("business_id", id.or_else(|| self.business_id.clone())),
            ("error_kind", self.error_kind.clone()),
            ("error_contains", self.error_contains.clone()),
            ("created_from", time(self.created_from)),
            ("created_before", time(self.created_before)),
            ("due_from", time(self.due_from)),
            ("due_before", time(self.due_before)),
        ];
        given(all)
    }
}

/// Those that are given.
pub(super) fn given<'n>(all: impl IntoIterator<Item = (&'n str, Option<String>)>) -> Query {
    all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), Value::String(value?)))).collect()
}

impl OfTasks {
    pub(super) fn fields(&self) -> Query {
        let mut fields = self.filter.fields();
        fields.extend(given([("status", self.status.as_ref().map(|status| name(status).to_uppercase()))]));
        fields
    }
}

impl OfDead {
    pub(super) fn fields(&self) -> Query {
        let mut fields = self.filter.fields();
        fields.extend(given([("reason", self.reason.as_ref().map(name)), ("owner", self.owner.clone())]));
        if self.unowned {
            fields.insert("owned".into(), json!(false));
        }
        if self.unacknowledged {
            fields.insert("acknowledged".into(), json!(false));
        }
        fields
    }
}

fn business(text: &str) -> Result<(String, String), &'static str> {
    let (kind, id) = text.split_once('/').ok_or("a type and an id, as in order/7")?;
    Ok((kind.to_owned(), id.to_owned()))
}

/// A time as a program writes it, or as a table shows it.
pub(super) fn moment(text: &str) -> Result<Timestamp, String> {
    moment_at(text, Clock::system().now())
}

fn moment_at(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    let time = |text: &str| humantime::parse_duration(text).map_err(|e| e.to_string());
    match (text.strip_suffix(" ago"), text.strip_prefix("in ")) {
        (Some(ago), _) => Ok(now - time(ago)?),
        (_, Some(ahead)) => Ok(now + time(ahead)?),
        _ if text == "now" => Ok(now),
        _ => text.parse().map_err(|_| "is no time as 2026-02-05T12:00:00Z, \"2h ago\", now or \"in 5m\"".into()),
    }
}

/// How many are listed.
#[derive(Debug, Args)]
pub(super) struct HowMany {
    /// How many, at the most.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// All there are.
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

/// What is listed, and how.
pub(super) struct Listing<'l> {
    /// The path, and the name of the list in its answers.
    pub(super) of: &'l str,
    pub(super) query: Query,
    pub(super) columns: &'l [Column],
    /// What people are told if there are none.
    pub(super) none: &'l str,
}

impl HowMany {
    /// Prints a list, page by page.
    pub(super) async fn list(&self, listing: Listing<'_>, api: &Api, out: Out) -> anyhow::Result<()> {
        let mut left = if self.all { usize::MAX } else { self.limit as usize };
        let (mut query, mut gathered, mut printed) = (listing.query, Vec::new(), false);
        loop {
            query.insert("limit".into(), json!(left.saturating_sub(gathered.len()).min(PAGE)));
            let mut page = api.get(&[listing.of], &query).await?;
            let items = page.get_mut(listing.of).map(Value::take);
            gathered.extend(match items {
                Some(Value::Array(items)) => items,
                _ => return Err(Failure::failed(format!("the answer has no {}", listing.of)).into()),
            });
            let next = page.get("next").filter(|next| !next.is_null()).cloned();
            let full = gathered.len() >= left;
            let enough = full || next.is_none() || out.json || gathered.len() >= PAGE;
            if enough && !(printed && gathered.is_empty()) {
                out.list(&gathered, listing.columns, listing.none)?;
                left = left.saturating_sub(gathered.len());
                gathered.clear();
                printed = true;
            }
            let Some(next) = next else { return Ok(()) };
            if full {
                if !out.json {
                    aside("there may be more: --limit N or --all");
                }
                return Ok(());
            }
            query.insert("after".into(), next);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_read_as_they_are_shown() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        let read = |text| moment_at(text, now);
        assert_eq!(read("now"), Ok(now));
        assert_eq!(read("3 min ago"), Ok(now - Duration::from_secs(180)));
        assert_eq!(read("in 2h"), Ok(now + Duration::from_secs(7_200)));
        assert_eq!(read("2026-02-05T12:00:00Z").unwrap().to_string(), "2026-02-05T12:00:00Z");
        assert!(read("yesterday").is_err() && read("in a while").is_err());
    }
}
