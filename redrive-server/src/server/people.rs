//! What people did, and their tokens.

use std::time::Duration;

use axum::Json as Shows;
use axum::extract::State;
use axum::http::StatusCode;
use redrive::store::{AuditFilter, Audited, Role, Token};
use redrive::{TaskId, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::auth::Admin;
use super::input::{Asked, Json, Names, page};
use super::problem::{Answer, Problem};
use super::shapes::{AuditedShape, RoleShape, TokenShape};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(audit)).routes(routes!(tokens, create_token)).routes(routes!(revoke_token))
}

/// Which records, and which page of them.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Records {
    who: Option<String>,
    /// What it begins with: `dead.`.
    action: Option<String>,
    target: Option<String>,
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<Timestamp>,
    #[param(value_type = Option<String>, format = DateTime)]
    before: Option<Timestamp>,
    /// Go on after this: `next` of the page before.
    #[param(value_type = Option<String>)]
    after: Option<TaskId>,
    /// Most entries of a page, up to 1,000. Default: 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

#[derive(Debug, Serialize, ToSchema)]
struct Audit {
    /// Newest first.
    #[schema(value_type = Vec<AuditedShape>)]
    audit: Vec<Audited>,
    /// There may be more: ask again with this as `after`.
    #[schema(value_type = Option<String>)]
    next: Option<TaskId>,
}

/// List what people did
///
/// And what they were refused, with the reason.
#[utoipa::path(get, path = "/audit", tag = "people", params(Records), responses((status = 200, body = Audit)))]
async fn audit(State(app): State<App>, Admin(_): Admin, Asked(asked): Asked<Records>) -> Answer<Shows<Audit>> {
    let Records { who, action, target, from, before, after, limit } = asked;
    let limit = page(limit)?;
    let audit = app.store.audits(&AuditFilter { who, action, target, from, before, after }, limit).await?;
    let next = audit.last().filter(|_| audit.len() as u32 == limit).map(|record| record.id);
    Ok(Shows(Audit { audit, next }))
}

#[derive(Debug, Serialize, ToSchema)]
struct Tokens {
    #[schema(value_type = Vec<TokenShape>)]
    tokens: Vec<Token>,
}

/// List tokens
#[utoipa::path(get, path = "/tokens", tag = "people", responses((status = 200, body = Tokens)))]
async fn tokens(State(app): State<App>, Admin(_): Admin) -> Answer<Shows<Tokens>> {
    Ok(Shows(Tokens { tokens: app.store.tokens().await? }))
}

/// A token to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewToken {
    /// Whose it is, or what for.
    #[schema(max_length = 100)]
    name: String,
    #[schema(value_type = RoleShape)]
    role: Role,
    /// How long it is good: `"90d"`. Default: until it is revoked.
    expires_in: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
struct MadeToken {
    #[schema(value_type = TokenShape)]
    token: Token,
    /// The token itself: shown this once.
    secret: String,
}

/// Create a token
///
/// It is stored hashed: what this answers cannot be had again.
#[utoipa::path(post, path = "/tokens", tag = "people", request_body = NewToken, responses((status = 201, body = MadeToken)))]
async fn create_token(
    State(app): State<App>,
    Admin(who): Admin,
    Json(new): Json<NewToken>,
) -> Answer<(StatusCode, Shows<MadeToken>)> {
    let now = app.clock.now();
    let expires_at = new.expires_in.as_deref().map(lifetime).transpose()?.map(|time| now + time);
    let made = app.store.create_token(&new.name, new.role, expires_at, &who.name, now).await?;
    let secret = made.secret.reveal().to_owned();
    Ok((StatusCode::CREATED, Shows(MadeToken { token: made.token, secret })))
}

fn lifetime(text: &str) -> redrive::Result<Duration> {
    let time = humantime::parse_duration(text).map_err(|e| redrive::Error::invalid("expires_in", e.to_string()))?;
    let most = Duration::from_secs(100 * 365 * 24 * 3600);
    if time.is_zero() || time > most {
        return Err(redrive::Error::invalid("expires_in", "must be more than nothing and at most 100 years"));
    }
    Ok(time)
}

/// Revoke a token
///
/// On other servers it may work for one more second.
#[utoipa::path(delete, path = "/tokens/{id}", tag = "people", params(("id" = String, Path)),
    responses((status = 204, description = "It is revoked.")))]
async fn revoke_token(State(app): State<App>, Admin(who): Admin, Names([id]): Names<1>) -> Answer<StatusCode> {
    let is_id = id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let revoked = is_id && app.store.revoke_token(&id, &who.name, app.clock.now()).await?;
    app.known.forget();
    match revoked {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Problem::not_found("token that is not revoked yet:", id)),
    }
}
