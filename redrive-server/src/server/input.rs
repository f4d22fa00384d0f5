//! What callers send: read strictly, and refused with the place where it is wrong.

use std::borrow::Cow;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use redrive::TaskId;
use redrive::store::Acting;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::{IntoParams, ToSchema};

use super::problem::{Answer, Problem, unreadable};
use super::{App, Caller};

/// A JSON body. Fields that are not known are refused: a misspelled limit must not be ignored.
pub(super) struct Json<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let bytes = Bytes::from_request(request, state).await;
        let bytes = bytes.map_err(|e| unreadable(&e))?;
        // No body is an empty object: for actions, whose fields are all optional.
        let bytes = if bytes.is_empty() { Bytes::from_static(b"{}") } else { bytes };
        understood("the body", &bytes).map(Self)
    }
}

/// JSON as what it should be.
pub(super) fn understood<T: DeserializeOwned>(what: &str, json: &[u8]) -> Result<T, Problem> {
    let wrong = |e: serde_json::Error| {
        let place = Some(&e).filter(|e| e.is_data()).and_then(|_| place::<T>(json));
        let place = place.map_or_else(String::new, |place| format!("{place}: "));
        Problem::new(StatusCode::BAD_REQUEST, "not_understood", format!("{what}: {place}{e}"))
    };
    serde_json::from_slice(json).map_err(wrong)
}

/// The field that is wrong, as `http.body`; none if it is the whole. It is read once more for that, so that only what is wrong pays for it.
fn place<T: DeserializeOwned>(json: &[u8]) -> Option<String> {
    let mut json = serde_json::Deserializer::from_slice(json);
    let wrong = serde_path_to_error::deserialize::<_, T>(&mut json).err()?;
    Some(wrong.path().to_string()).filter(|place| place != ".")
}

/// What a person says about what they do.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Said {
    /// For the audit; at most 4096 bytes.
    #[serde(default)]
    #[schema(max_length = 4096)]
    note: String,
}

impl Said {
    pub(super) fn note(&self) -> Answer<Option<&str>> {
        Ok(noted(&self.note, LONGEST_NOTE)?)
    }

    pub(super) fn by<'s>(&'s self, app: &'s App, who: &'s Caller) -> Answer<Acting<'s>> {
        acting(app, who, &self.note)
    }
}

/// Somebody who does something, with what they say about it.
pub(crate) fn acting<'s>(app: &'s App, who: &'s Caller, note: &'s str) -> Answer<Acting<'s>> {
    let acting = app.store.acting(&who.name)?;
    Ok(noted(note, LONGEST_NOTE)?.map_or(acting, |note| acting.noting(note)))
}

/// Bytes of a note. The store cuts what is longer.
pub(crate) const LONGEST_NOTE: usize = 4_096;

/// A note that is kept as it is: one that would be cut is refused. Who says nothing leaves no note, and does not put an empty one in the
/// place of another.
pub(crate) fn noted(note: &str, longest: usize) -> redrive::Result<Option<&str>> {
    match note.len() <= longest {
        true => Ok(Some(note).filter(|note| !note.is_empty())),
        false => Err(redrive::Error::invalid("note", format!("must be of {longest} bytes at the most"))),
    }
}

/// The query.
pub(super) struct Asked<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let read = Query::<T>::from_request_parts(parts, state).await;
        let wrong = |e: axum::extract::rejection::QueryRejection| e.body_text();
        read.map(|Query(query)| Self(query))
            .map_err(|e| Problem::new(StatusCode::BAD_REQUEST, "not_understood", format!("the query: {}", wrong(e))))
    }
}

/// A query that asks for a page: which entries, and which page of them.
pub(super) struct AskedPage<F>(pub(super) F, pub(super) Paging);

impl<S: Send + Sync, F: DeserializeOwned> FromRequestParts<S> for AskedPage<F> {
    type Rejection = Problem;

    /// Each field belongs to one of the two, which refuses it if it does not know it.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let fields = url::form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes());
        let (paging, which): (Vec<_>, Vec<_>) = fields.partition(|(name, _)| Paging::FIELDS.contains(&&**name));
        Ok(Self(queried(which)?, queried(paging)?))
    }
}

fn queried<T: DeserializeOwned>(fields: Vec<(Cow<'_, str>, Cow<'_, str>)>) -> Result<T, Problem> {
    let query = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
    let wrong = |why: String| Problem::new(StatusCode::BAD_REQUEST, "not_understood", format!("the query: {why}"));
    let uri = format!("/?{query}").parse().map_err(|e: axum::http::uri::InvalidUri| wrong(e.to_string()))?;
    Query::try_from_uri(&uri).map(|Query(read)| read).map_err(|e| wrong(e.body_text()))
}

/// Which page.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Paging {
    /// Go on after this: `next` of the page before.
    #[param(value_type = Option<String>)]
    pub(super) after: Option<TaskId>,
    /// Most entries of a page, up to 1,000. A page with 16 MiB of params ends sooner. Default: 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

impl Paging {
    const FIELDS: [&str; 2] = ["after", "limit"];

    /// Most entries of the page.
    pub(super) fn limit(&self) -> Result<u32, Problem> {
        page(self.limit)
    }
}

/// The names in a path, as many as it has: of a gate, a saga, a guard and a row. None is longer than anything has, and none has a NUL,
/// which PostgreSQL does not take.
pub(crate) struct Names<const N: usize>(pub(crate) [String; N]);

/// Longer than any name: a field of a method in the settings has the method's name and some more.
const LONGEST_NAME: usize = 1_000;

impl<S: Send + Sync, const N: usize> FromRequestParts<S> for Names<N> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let wrong = |why: String| Problem::new(StatusCode::BAD_REQUEST, "not_understood", format!("the path: {why}"));
        let path = Path::<Vec<String>>::from_request_parts(parts, state).await;
        let Path(names) = path.map_err(|e| wrong(e.body_text()))?;
        if names.iter().any(|name| name.len() > LONGEST_NAME || name.contains('\0')) {
            return Err(wrong(format!("names must be of {LONGEST_NAME} bytes at the most, without NUL")));
        }
        let names = names.try_into().map_err(|names: Vec<_>| wrong(format!("has {} names, not {N}", names.len())))?;
        Ok(Self(names))
    }
}

/// The id of a task, in the path.
pub(super) struct Id(pub(super) TaskId);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Names([text]) = Names::from_request_parts(parts, state).await?;
        text.parse().map(Self).map_err(Problem::from)
    }
}

/// The name of a method, in the path.
pub(super) struct MethodName(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for MethodName {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Names([name]) = Names::from_request_parts(parts, state).await?;
        match (1..=500).contains(&name.len()) {
            true => Ok(Self(name)),
            false => Err(redrive::Error::invalid("method", "must be from 1 to 500 bytes").into()),
        }
    }
}

/// Most entries of a page.
const MOST: u32 = 1_000;

/// How many entries a page has.
pub(super) fn page(limit: Option<u32>) -> Result<u32, Problem> {
    let limit = limit.unwrap_or(100);
    match (1..=MOST).contains(&limit) {
        true => Ok(limit),
        false => Err(redrive::Error::invalid("limit", format!("must be from 1 to {MOST}")).into()),
    }
}
