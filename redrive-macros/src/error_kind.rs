//! `#[derive(ErrorKind)]`: the kind of an error, from the name of its variant.

use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::{Attribute, Data, DeriveInput, Fields, Ident, LitStr, Variant};

use crate::errors;

pub(crate) fn expand(input: &DeriveInput) -> syn::Result<Tokens> {
    let body = match &input.data {
        Data::Enum(data) if data.variants.is_empty() => quote!(match *self {}),
        Data::Enum(data) => {
            let arms = data.variants.iter().map(arm).collect::<syn::Result<Vec<_>>>()?;
            quote!(match self { #(#arms)* })
        }
        Data::Struct(_) => {
            let kind = kind_of(&input.ident, &input.attrs)?;
            quote!(::redrive::Kind::of(#kind))
        }
        Data::Union(_) => return Err(syn::Error::new_spanned(&input.ident, "ErrorKind is for enums and structs")),
    };
    let name = &input.ident;
    let (generics, arguments, conditions) = input.generics.split_for_impl();
    Ok(quote! {
        impl #generics ::redrive::ErrorKind for #name #arguments #conditions {
            fn kind(&self) -> ::redrive::Kind { #body }
        }
    })
}

fn arm(variant: &Variant) -> syn::Result<Tokens> {
    let kind = kind_of(&variant.ident, &variant.attrs)?;
    let name = &variant.ident;
    let fields = match variant.fields {
        Fields::Named(_) => quote!({ .. }),
        Fields::Unnamed(_) => quote!((..)),
        Fields::Unit => quote!(),
    };
    Ok(quote!(Self::#name #fields => ::redrive::Kind::of(#kind),))
}

/// The text of `#[kind("…")]`, else the name.
fn kind_of(name: &Ident, attributes: &[Attribute]) -> syn::Result<LitStr> {
    let Some(attribute) = attributes.iter().find(|a| a.path().is_ident("kind")) else {
        return Ok(LitStr::new(&name.to_string(), name.span()));
    };
    let kind: LitStr = attribute.parse_args()?;
    errors::check_kind(&kind)?;
    Ok(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: &str) -> String {
        let input: DeriveInput = syn::parse_str(code).unwrap();
        expand(&input).unwrap_err().to_string()
    }

    #[test]
    fn wrong_kinds_are_refused_with_what_is_right() {
        assert!(error("enum E { #[kind(\"a b\")] A }").contains("without spaces"));
        assert!(error("enum E { #[kind(\"\")] A }").contains("1 to 100 bytes"));
        assert!(error("enum E { #[kind(5)] A }").contains("expected string literal"));
        assert!(error("union U { a: u8 }").contains("for enums and structs"));
    }
}
