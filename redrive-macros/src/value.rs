//! The values of options: words, numbers, durations, texts. Each becomes the Rust expression that makes it.
//!
//! What can be checked is checked here, by the same limits as when the program runs, and an error points at the value and
//! says what is allowed.

use proc_macro2::{Span, TokenStream as Tokens};
use quote::quote;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Expr, Ident, LitFloat, LitInt, LitStr, Token};

/// The longest duration in a policy: ten years.
const LONGEST: u64 = 3650 * 24 * 3600 * 1000;
const MOST_ATTEMPTS: u32 = 1_000_000;
const MOST_CRASHES: u32 = 1000;
const LONGEST_METHOD: usize = 500;

/// One of these words; each stands for a path.
pub(crate) fn word(input: ParseStream, ty: &str, words: &[(&str, &str)]) -> syn::Result<Tokens> {
    let allowed = || format!("one of {}", listed(words.iter().map(|(word, _)| *word)));
    let said = input.call(Ident::parse_any).map_err(|e| syn::Error::new(e.span(), allowed()))?;
    let (_, variant) =
        words.iter().find(|(word, _)| said == word).ok_or_else(|| syn::Error::new(said.span(), allowed()))?;
    let (ty, variant) = (Ident::new(ty, said.span()), Ident::new(variant, said.span()));
    Ok(quote!(::redrive::#ty::#variant))
}

/// `a, b, c`.
pub(crate) fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// `5`, or `unlimited`.
pub(crate) fn attempts(input: ParseStream) -> syn::Result<Tokens> {
    let why = format!("a number from 1 to {MOST_ATTEMPTS}, or `unlimited`");
    if input.peek(Ident) {
        let said: Ident = input.parse()?;
        return if said == "unlimited" {
            Ok(quote!(::core::option::Option::None))
        } else {
            Err(syn::Error::new(said.span(), why))
        };
    }
    let n = whole(input, 1, MOST_ATTEMPTS, &why)?;
    Ok(quote!(::core::option::Option::Some(#n)))
}

pub(crate) fn crashes(input: ParseStream) -> syn::Result<Tokens> {
    let n = whole(input, 1, MOST_CRASHES, &format!("a number from 1 to {MOST_CRASHES}"))?;
    Ok(quote!(#n))
}

/// A whole number in these bounds.
fn whole(input: ParseStream, least: u32, most: u32, why: &str) -> syn::Result<u32> {
    let said: LitInt = input.parse().map_err(|e: syn::Error| syn::Error::new(e.span(), why))?;
    let n = said.base10_parse().ok().filter(|n| (least..=most).contains(n));
    n.ok_or_else(|| syn::Error::new(said.span(), why))
}

/// `5` or `-5`.
pub(crate) fn priority(input: ParseStream) -> syn::Result<Tokens> {
    let why = format!("a number from {} to {}; the greater goes first", i16::MIN, i16::MAX);
    let minus = input.parse::<Option<Token![-]>>()?;
    let said: LitInt = input.parse().map_err(|e: syn::Error| syn::Error::new(e.span(), &why))?;
    let n: i32 = said.base10_parse().map_err(|_| syn::Error::new(said.span(), &why))?;
    let n = i16::try_from(if minus.is_some() { -n } else { n }).map_err(|_| syn::Error::new(said.span(), &why))?;
    Ok(quote!(#n))
}

/// A number with or without a fraction, in these bounds.
pub(crate) fn number(input: ParseStream, least: f64, most: f64, why: &str) -> syn::Result<f64> {
    let (span, text) = if input.peek(LitInt) {
        let said: LitInt = input.parse()?;
        (said.span(), said.base10_digits().to_owned())
    } else {
        let said: LitFloat = input.parse().map_err(|e: syn::Error| syn::Error::new(e.span(), why))?;
        (said.span(), said.base10_digits().to_owned())
    };
    let n = text.parse().ok().filter(|n| (least..=most).contains(n));
    n.ok_or_else(|| syn::Error::new(span, why))
}

/// A duration that was checked, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Millis(pub(crate) u64);

impl quote::ToTokens for Millis {
    fn to_tokens(&self, tokens: &mut Tokens) {
        let ms = self.0;
        tokens.extend(quote!(::core::time::Duration::from_millis(#ms)));
    }
}

impl Parse for Millis {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let text: LitStr = input.parse().map_err(|e: syn::Error| {
            syn::Error::new(e.span(), "a duration in quotes, such as \"90s\", \"5m\" or \"1h 30m\"")
        })?;
        let (said, refuse) = (text.value(), |why: String| Err(syn::Error::new(text.span(), why)));
        let Ok(duration) = humantime::parse_duration(&said) else {
            return refuse(format!("{said:?} is not a duration such as \"90s\", \"5m\" or \"1h 30m\""));
        };
        match u64::try_from(duration.as_millis()) {
            _ if !duration.subsec_nanos().is_multiple_of(1_000_000) => {
                refuse(format!("{said:?} is not in whole milliseconds, which is how it is stored"))
            }
            Ok(ms) if (1..=LONGEST).contains(&ms) => Ok(Self(ms)),
            _ => refuse(format!("{said:?} is not from \"1ms\" to \"3650days\"")),
        }
    }
}

/// `"1h"`, for a field that may be empty.
pub(crate) fn duration(input: ParseStream) -> syn::Result<Tokens> {
    let time: Millis = input.parse()?;
    Ok(quote!(::core::option::Option::Some(#time)))
}

/// A duration for a field that always has one.
pub(crate) fn span(input: ParseStream) -> syn::Result<Tokens> {
    let time: Millis = input.parse()?;
    Ok(quote!(#time))
}

/// `(after = 3)`, `(after = "30m")`.
pub(crate) fn notify(inside: ParseStream) -> syn::Result<Tokens> {
    let why = "write notify(after = 3) for the third failure, or notify(after = \"30m\") for half an hour of failing";
    let other = |e: syn::Error| syn::Error::new(e.span(), why);
    let name = inside.call(Ident::parse_any).map_err(other)?;
    if name != "after" {
        return Err(syn::Error::new(name.span(), why));
    }
    inside.parse::<Token![=]>().map_err(other)?;
    let when = if inside.peek(LitStr) {
        let time: Millis = inside.parse()?;
        quote!(::redrive::Notify::FailingFor(#time))
    } else {
        let failures = whole(inside, 1, u32::MAX, why)?;
        quote!(::redrive::Notify::Failures(#failures))
    };
    inside.parse::<Option<Token![,]>>()?;
    Ok(quote!(::core::option::Option::Some(#when)))
}

/// The name of a method.
pub(crate) fn method(input: ParseStream) -> syn::Result<LitStr> {
    let why = format!("a name in quotes, of 1 to {LONGEST_METHOD} bytes, under which tasks of this fn are stored");
    let name: LitStr = input.parse().map_err(|e: syn::Error| syn::Error::new(e.span(), &why))?;
    let text = name.value();
    let ok = (1..=LONGEST_METHOD).contains(&text.len()) && !text.contains('\0') && !text.trim().is_empty();
    if ok { Ok(name) } else { Err(syn::Error::new(name.span(), why)) }
}

/// `"order", order.id`.
pub(crate) fn business(inside: ParseStream, name: Span) -> syn::Result<Tokens> {
    let parts = Punctuated::<Expr, Token![,]>::parse_terminated(inside)?;
    let mut parts = parts.into_iter();
    let (Some(kind), Some(id), None) = (parts.next(), parts.next(), parts.next()) else {
        let why = "business has two parts, what sort of thing it is about and which: business(\"order\", order.id)";
        return Err(syn::Error::new(name, why));
    };
    Ok(quote!(::redrive::Business { kind: ::std::format!("{}", #kind), id: ::std::format!("{}", #id) }))
}

/// Whether a result is a success.
pub(crate) enum SuccessIf {
    /// A closure, or the path of a fn.
    Test(Expr),
    Cel(LitStr),
}

impl Parse for SuccessIf {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        if input.peek(LitStr) {
            return input.parse().map(Self::Cel);
        }
        match input.parse()? {
            test @ (Expr::Closure(_) | Expr::Path(_)) => Ok(Self::Test(test)),
            other => {
                let why = "a closure, such as |r| r.code == 200, or CEL in quotes, such as \"result.code == 200\"";
                Err(syn::Error::new_spanned(other, why))
            }
        }
    }
}
