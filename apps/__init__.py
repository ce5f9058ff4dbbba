"""Programs on top of pslite, each a package of its own: `apps.ctr`."""
