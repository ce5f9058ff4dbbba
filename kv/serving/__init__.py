"""A server's side of tables, part by part; `kv.table_server` puts them together.

Who works on a request, and when, is said there. What is done then is here, by command:

    commands   what each of these parts offers
    tables     the tables of a server by their ids: DEFINE, SET_LR, UNSENT
    pulls      PULL and REFRESH, which may have to wait for a clock
    writes     PUSH, PUSH_PULL, ASSIGN, DELETE
    reads      SIZE, SCAN, META, CHANGED, STATS, which no clock holds back
    rounds     STEP, FINISH, BEGIN, and what else closes rounds

    at_once    short pulls and pushes, without turns
    held       pulls that wait
    ranks      whose request it is
    answers    answers as they go out, and errors among them
    memory     of the values of answers
"""
