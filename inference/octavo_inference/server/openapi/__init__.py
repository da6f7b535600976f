"""The OpenAPI document of a port, and pages that show it.

`schemas` has the JSON Schemas of the message types, `operations` describes an endpoint, `document` puts them together,
`legacy` rewrites a document for Swagger UI, and `pages` has the endpoints.
"""
