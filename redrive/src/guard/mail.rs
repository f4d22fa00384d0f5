//! What people are told of rows that wait for them: one mail for all rows of a guard.

use std::fmt::Write as _;

use crate::clock::Timestamp;
use crate::error::Problems;
use crate::store::db::Row;

use super::sql::Sql;
use super::value::RowId;

/// How people are told.
#[derive(Clone, Debug, Default)]
pub(super) struct Post {
    #[cfg(feature = "notify")]
    channel: Option<crate::notify::Channel>,
}

/// The rows of a guard that people are told of.
#[derive(Clone, Debug)]
pub(super) struct Digest {
    pub(super) service_name: String,
    pub(super) table: String,
    /// Some of them.
    pub(super) named: Vec<Named>,
    /// How many there are.
    pub(super) total: u64,
    pub(super) route: Option<String>,
}

/// A row that is named in a mail.
#[derive(Clone, Debug)]
pub(super) struct Named {
    id: RowId,
    user: Option<String>,
    since: Option<String>,
    retries: i64,
    told: i64,
}

pub(super) fn read(sql: &Sql, row: &Row) -> sqlx::Result<Named> {
    let mut c = row.columns();
    let id = sql.read_id(&mut c)?;
    let (user, since) = (c.opt_text()?.map(str::to_owned), c.opt_text()?.map(str::to_owned));
    Ok(Named { id, user, since, retries: c.int()?, told: c.int()? })
}

impl Post {
    #[cfg(feature = "notify")]
    pub(super) fn to(channel: crate::notify::Channel) -> Self {
        Self { channel: Some(channel) }
    }

    /// What is wrong with it.
    #[cfg_attr(not(feature = "notify"), allow(unused_variables, clippy::unused_self))]
    pub(super) fn check(&self, problems: &mut Problems) {
        #[cfg(feature = "notify")]
        if let Some(channel) = &self.channel {
            let mut inner = Problems::default();
            channel.check(&mut inner);
            problems.nest("mail", inner);
        }
    }

    /// Sends it; an error says why it could not be.
    #[cfg(feature = "notify")]
    pub(super) async fn send(&self, digest: &Digest, now: Timestamp) -> Result<(), String> {
        let Some(channel) = &self.channel else { return Err(NO_MAIL.into()) };
        let message = crate::notify::Message {
            subject: digest.subject(),
            text: digest.text(),
            details: serde_json::json!({ "guard": digest.service_name, "table": digest.table, "rows": digest.total }),
        };
        channel.send(&message, now).await.map_err(|e| e.to_string())
    }

    #[cfg(not(feature = "notify"))]
    pub(super) async fn send(&self, digest: &Digest, _: Timestamp) -> Result<(), String> {
        Err(format!("{}: this build cannot send mails (cargo feature notify)", digest.subject()))
    }
}

#[cfg(feature = "notify")]
const NO_MAIL: &str = "no mail is configured: give the guards a mail server, mail_from and mail_to";

#[cfg_attr(not(feature = "notify"), allow(dead_code))]
impl Digest {
    fn subject(&self) -> String {
        let (rows, need) = if self.total == 1 { ("row", "needs") } else { ("rows", "need") };
        format!("[redrive] {}: {} {rows} {need} a person", self.service_name, self.total)
    }

    fn text(&self) -> String {
        let mut text = format!("{}: {} rows of {} wait for a person.\n\n", self.service_name, self.total, self.table);
        for row in &self.named {
            _ = writeln!(text, "{}", row.line()); // writing to a String cannot fail
        }
        let more = self.total.saturating_sub(self.named.len() as u64);
        if more > 0 {
            _ = writeln!(text, "… and {more} more");
        }
        if let Some(route) = &self.route {
            _ = writeln!(text, "\nWhen a row is put right: POST {route}?dataId=<id>");
        }
        text
    }
}

#[cfg_attr(not(feature = "notify"), allow(dead_code))]
impl Named {
    fn line(&self) -> String {
        let user = self.user.as_deref().map(|user| format!(", user {user}")).unwrap_or_default();
        let since = self.since.as_deref().unwrap_or("unknown");
        let Self { id, retries, told, .. } = self;
        format!("id {id}{user}: abnormal since {since}, {retries} retries failed, told {told} times before")
    }
}
