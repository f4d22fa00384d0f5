//! Tokens for the API: who they belong to, what they may do, until when.
//!
//! A token is `rdr_<id>_<secret>`: 8 random bytes in hexadecimal by which its row is found, and 32 random bytes in base64url.
//! It is shown once, when it is made. What is stored is a hash (BLAKE3) of the secret. A slow hash is for passwords, which
//! can be guessed; among 2^256 secrets there is nothing to guess, however fast the hash, and a slow one would cost every
//! request of the API.
//!
//! *Invariants.* A secret is in no row, log, error or `Debug` output. Hashes are compared in constant time. A token that is
//! revoked or has expired is as good as none. Making and revoking one is in the audit, in the same transaction.
//!
//! *Failure.* `last_used_at` is for people: it is written at most once a minute, and a token is good also if that fails.

use std::str::FromStr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::clock::Timestamp;
use crate::error::{Error, Problems, Result};
use crate::secret::Secret;

use super::Store;
use super::audit::{AuditEntry, check_by};
use super::db::{Row, query};
use super::pool::Use;
use super::retry::{Scope, retrying};
use super::row::time;

const PREFIX: &str = "rdr_";
const LONGEST_NAME: usize = 100;
/// How exact `last_used_at` is.
const USED_EVERY: Duration = Duration::from_secs(60);

/// What a token may do. Each may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Look, but not at params.
    Viewer,
    /// Look at everything, enqueue, and do what is done to tasks and letters.
    Operator,
    /// Everything, also settings and tokens.
    Admin,
}

/// A token, as far as it is known after it was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Token {
    /// Its public part.
    pub id: String,
    /// Whose it is, or what for.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// When it was made.
    pub created_at: Timestamp,
    /// By whom.
    pub created_by: String,
    /// Until when it is good.
    pub expires_at: Option<Timestamp>,
    /// When it was last used, to within a minute.
    pub last_used_at: Option<Timestamp>,
    /// Since when it is revoked.
    pub revoked_at: Option<Timestamp>,
    /// By whom.
    pub revoked_by: Option<String>,
}

/// A token that was just made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NewToken {
    /// What is stored of it.
    pub token: Token,
    /// The token itself: to be shown once, it cannot be had again.
    pub secret: Secret,
}

impl Role {
    const ALL: [Self; 3] = [Self::Viewer, Self::Operator, Self::Admin];

    /// Its name in the database and the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl FromStr for Role {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        let wrong = || Error::invalid("role", format!("{name:?} is none of viewer, operator, admin"));
        Self::ALL.into_iter().find(|role| role.as_str() == name).ok_or_else(wrong)
    }
}

impl Token {
    /// Whether it is good at this time: neither revoked nor expired.
    pub fn is_good(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|until| now < until)
    }
}

/// A token as it is sent: its id and the hash of its secret.
struct Shown<'t> {
    id: &'t str,
    hash: blake3::Hash,
}

impl<'t> Shown<'t> {
    fn read(token: &'t str) -> Option<Self> {
        let (id, secret) = token.strip_prefix(PREFIX)?.split_once('_')?;
        // Anybody can send anything: what is no id is not looked for. PostgreSQL, for one, takes no NUL.
        let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_id.then(|| Self { id, hash: hash(secret) })
    }
}

/// Its own context: the hash is good for nothing else.
fn hash(secret: &str) -> blake3::Hash {
    blake3::Hash::from_bytes(blake3::derive_key("redrive 2026 secrets of API tokens", secret.as_bytes()))
}

/// An id and a secret that nobody can guess.
fn make() -> Result<(String, String)> {
    let mut bytes = [0; 40];
    getrandom::fill(&mut bytes).map_err(|_| Error::invalid("token", "the system gives no random numbers"))?;
    let (id, secret) = bytes.split_at(8);
    let id = id.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((id, URL_SAFE_NO_PAD.encode(secret)))
}

impl Store {
    /// Makes a token. Its secret is in the answer and nowhere else.
    ///
    /// ```
    /// use redrive::Store;
    /// use redrive::store::Role;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redrive::Result<()> {
    /// let (store, now) = (Store::open("sqlite::memory:").await?, "2027-01-01T00:00:00Z".parse()?);
    /// let made = store.create_token("deploy", Role::Operator, None, "alice", now).await?;
    /// let found = store.find_token(made.secret.reveal(), now).await?.unwrap();
    /// assert_eq!((&*found.name, found.role), ("deploy", Role::Operator));
    /// assert!(!format!("{made:?}").contains(made.secret.reveal()));
    /// # Ok(()) }
    /// ```
    pub async fn create_token(
        &self,
        name: &str,
        role: Role,
        expires_at: Option<Timestamp>,
        by: &str,
        now: Timestamp,
    ) -> Result<NewToken> {
        check_by(by)?;
        check_new(name, expires_at, now)?;
        let (id, secret) = make()?;
        let hash = hash(&secret).to_hex();
        let after = json!({ "id": id, "role": role, "expires_at": expires_at });
        let record = self.record(AuditEntry::new(by, "token.create", name).changed(None, after), now);
        let sql = "INSERT INTO redrive_token (id, created_at, expires_at, name, role, hash, created_by) \
                   VALUES (?, ?, ?, ?, ?, ?, ?)";
        let insert = query(sql).bind(&*id).bind(now).bind(expires_at).bind(name).bind(role.as_str());
        let insert = insert.bind(hash.as_str()).bind(by);
        let there = query("SELECT 1 FROM redrive_token WHERE id = ?").bind(&*id);
        retrying!(self.pools(), Use::Write, Scope::Transaction, "making a token", |c, tried| {
            if tried > 0 && c.row(there.clone()).await?.is_some() {
                return Ok(()); // our earlier try, whose answer was lost
            }
            c.execute(insert.clone()).await?;
            record.write(c, now).await
        })?;
        let token = Token {
            id: id.clone(),
            name: name.to_owned(),
            role,
            created_at: now,
            created_by: by.to_owned(),
            expires_at,
            last_used_at: None,
            revoked_at: None,
            revoked_by: None,
        };
        Ok(NewToken { token, secret: format!("{PREFIX}{id}_{secret}").into() })
    }

    /// All tokens, the oldest first, also those that are not good any more.
    pub async fn tokens(&self) -> Result<Vec<Token>> {
        let sql = format!("SELECT {COLUMNS} FROM redrive_token ORDER BY created_at, id");
        retrying!(self.pools(), Use::Read, Scope::Statement, "listing tokens", |c, _| {
            c.rows(query(sql.clone())).await?.iter().map(|row| Ok(read_token(row)?.0)).collect()
        })
    }

    /// Revokes the token of this id. `false`: there is none that is not revoked already.
    pub async fn revoke_token(&self, id: &str, by: &str, now: Timestamp) -> Result<bool> {
        check_by(by)?;
        let Some((token, _)) = self.read_stored(id).await? else { return Ok(false) };
        let entry = AuditEntry::new(by, "token.revoke", &token.name).changed(json!({ "id": id }), None);
        let record = self.record(entry, now);
        let sql = "UPDATE redrive_token SET revoked_at = ?, revoked_by = ? WHERE id = ? AND revoked_at IS NULL";
        let revoke = query(sql).bind(now).bind(by).bind(id);
        retrying!(self.pools(), Use::Write, Scope::Transaction, "revoking a token", |c, tried| {
            if c.execute(revoke.clone()).await? == 0 {
                return Ok(tried > 0 && token.revoked_at.is_none());
            }
            record.write(c, now).await?;
            Ok(true)
        })
    }

    /// The token that was sent, if it is one and is good.
    pub async fn find_token(&self, sent: &str, now: Timestamp) -> Result<Option<Token>> {
        let Some(sent) = Shown::read(sent) else { return Ok(None) };
        let Some((token, stored)) = self.read_stored(sent.id).await? else { return Ok(None) };
        // This comparison takes the same time wherever they differ.
        if sent.hash != stored || !token.is_good(now) {
            return Ok(None);
        }
        if token.last_used_at.is_none_or(|used| now.since(used) >= USED_EVERY) {
            self.note_used(&token.id, now).await;
        }
        Ok(Some(token))
    }

    async fn read_stored(&self, id: &str) -> Result<Option<(Token, blake3::Hash)>> {
        let sql = format!("SELECT {COLUMNS} FROM redrive_token WHERE id = ?");
        retrying!(self.pools(), Use::Read, Scope::Statement, "looking for a token", |c, _| {
            c.row(query(sql.clone()).bind(id)).await?.as_ref().map(read_token).transpose()
        })
    }

    async fn note_used(&self, id: &str, now: Timestamp) {
        let sql =
            "UPDATE redrive_token SET last_used_at = ? WHERE id = ? AND (last_used_at IS NULL OR last_used_at <= ?)";
        let note = query(sql).bind(now).bind(id).bind(now - USED_EVERY);
        let noted: Result<u64> =
            retrying!(self.pools(), Use::Write, Scope::Statement, "noting that a token was used", |c, _| c
                .execute(note.clone())
                .await);
        if let Err(e) = noted {
            tracing::warn!(error = %e, token = id, "that a token was used could not be noted");
        }
    }
}

fn check_new(name: &str, expires_at: Option<Timestamp>, now: Timestamp) -> Result<()> {
    let mut problems = Problems::default();
    let fits = (1..=LONGEST_NAME).contains(&name.len()) && !name.contains(char::is_control);
    problems.require(fits, "name", || format!("must be from 1 to {LONGEST_NAME} bytes, on one line"));
    problems.require(expires_at.is_none_or(|at| at > now), "expires_at", || "must be in the future".into());
    problems.into_result()
}

const COLUMNS: &str = "id, name, role, created_at, created_by, expires_at, last_used_at, revoked_at, revoked_by, hash";

fn read_token(row: &Row) -> sqlx::Result<(Token, blake3::Hash)> {
    let mut c = row.columns();
    let token = Token {
        id: c.text()?.to_owned(),
        name: c.text()?.to_owned(),
        role: c.text()?.parse().map_err(|e: Error| sqlx::Error::Decode(e.to_string().into()))?,
        created_at: time(&mut c)?.unwrap_or_default(),
        created_by: c.text()?.to_owned(),
        expires_at: time(&mut c)?,
        last_used_at: time(&mut c)?,
        revoked_at: time(&mut c)?,
        revoked_by: c.opt_text()?.map(str::to_owned),
    };
    let hash = blake3::Hash::from_hex(c.text()?).map_err(|_| sqlx::Error::Decode("a token's hash is none".into()))?;
    Ok((token, hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_token_is_none() {
        for text in ["", "rdr_", "rdr_abc", "Bearer rdr_a_b", "xyz_a_b", "rdr__b", "rdr_\0_b", "rdr_é_b"] {
            assert!(Shown::read(text).is_none(), "{text:?}");
        }
        let (id, secret) = make().unwrap();
        let token = format!("{PREFIX}{id}_{secret}");
        let shown = Shown::read(&token).unwrap();
        assert_eq!((shown.id, shown.hash), (&*id, hash(&secret)));
        assert_eq!((id.len(), secret.len()), (16, 43));
        assert_ne!(make().unwrap().1, secret);
    }
}
