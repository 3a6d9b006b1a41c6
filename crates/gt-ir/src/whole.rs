//! Shared bytes on the wire as one piece. The derived form writes and reads them one by one, which for a tensor takes longer
//! than all else that becomes of its message; what is on the wire is the same.

use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::sync::Arc;

/// Bytes that are written and read as one piece.
pub struct Whole(pub Arc<Vec<u8>>);

impl Serialize for Whole {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Whole, D::Error> {
        struct Read;

        impl Visitor<'_> for Read {
            type Value = Whole;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Whole, E> {
                Ok(Whole(Arc::new(bytes.to_vec())))
            }

            fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Whole, E> {
                Ok(Whole(Arc::new(bytes)))
            }
        }

        from.deserialize_byte_buf(Read)
    }
}

/// For `#[serde(with)]` on a field of bytes.
pub mod bytes {
    use super::*;

    pub fn serialize<S: Serializer>(bytes: &Arc<Vec<u8>>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<Vec<u8>>, D::Error> {
        Whole::deserialize(from).map(|whole| whole.0)
    }
}

/// For `#[serde(with)]` on a field that may hold bytes.
pub mod maybe {
    use super::*;

    pub fn serialize<S: Serializer>(bytes: &Option<Arc<Vec<u8>>>, to: S) -> Result<S::Ok, S::Error> {
        bytes.clone().map(Whole).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Arc<Vec<u8>>>, D::Error> {
        Ok(Option::<Whole>::deserialize(from)?.map(|whole| whole.0))
    }
}

/// For `#[serde(with)]` on a field that holds bytes, nothing, or the reason why there are none.
pub mod outcome {
    use super::*;

    /// What is written and read.
    type Bytes<E> = Result<Option<Arc<Vec<u8>>>, E>;

    pub fn serialize<S: Serializer, E: Serialize>(outcome: &Bytes<E>, to: S) -> Result<S::Ok, S::Error> {
        outcome.as_ref().map(|bytes| bytes.clone().map(Whole)).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>, E: Deserialize<'de>>(
        from: D,
    ) -> Result<Bytes<E>, D::Error> {
        let outcome = Result::<Option<Whole>, E>::deserialize(from)?;
        Ok(outcome.map(|bytes| bytes.map(|whole| whole.0)))
    }
}
