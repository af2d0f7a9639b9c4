"""The custom resources of group `serving.pagoda.dev`, as frozen pydantic models from which the CRDs are generated."""
